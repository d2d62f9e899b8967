"""Certificates for tls, made by openssl when they are first asked for, gone with the process."""

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from moonpool.transfer import TlsFiles


@cache
def certificates(authority: str) -> TlsFiles:
    """A certificate signed by an authority of this name; each name is an authority of its own.
    Skips the test where there is no openssl to make one."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes certificates, is not installed")
    folder = Path(tempfile.mkdtemp(prefix="moonpool-tls-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    _openssl(
        folder,
        *("req", "-x509", *new_key, "-days", "2", "-subj", f"/CN={authority}"),
        *("-addext", "keyUsage=critical,keyCertSign", "-keyout", "ca.key", "-out", "ca.pem"),
    )
    _openssl(
        folder, *("req", *new_key, "-subj", "/CN=member", "-keyout", "key.pem", "-out", "ask.pem")
    )
    _openssl(
        folder,
        *("x509", "-req", "-in", "ask.pem", "-CA", "ca.pem", "-CAkey", "ca.key"),
        *("-CAcreateserial", "-days", "2", "-out", "certificate.pem"),
    )
    return TlsFiles(
        str(folder / "certificate.pem"), str(folder / "key.pem"), str(folder / "ca.pem")
    )


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=30.0
    )
