"""A real S3 server for tests: SeaweedFS, from the package that the project installs."""

import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from botocore.exceptions import BotoCoreError, ClientError

from services.cli.mesh.ports import free_ports
from services.cli.mesh.servers import S3Ports, s3_command
from services.store.tiers.oss_vault import Bucket, make_client

START_MAX_S = 30.0
BUCKET = "kvcache"


class S3Server:
    """`with S3Server() as server:`; it can be killed and started again on the same data."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="moonpool-s3-")
        self._ports = S3Ports(*free_ports(8))
        self._process: subprocess.Popen[bytes] | None = None
        self.bucket = Bucket(
            f"http://127.0.0.1:{self._ports.s3}", BUCKET, "test-key", "test-secret", "us-east-1"
        )

    @property
    def port(self) -> int:
        return self._ports.s3

    def start(self) -> None:
        """Returns once it stores and gives; its port answers long before."""
        folder = Path(self._folder.name)
        env = {
            "AWS_ACCESS_KEY_ID": self.bucket.access_key,
            "AWS_SECRET_ACCESS_KEY": self.bucket.secret_key,
            "S3_BUCKET": BUCKET,
            "HOME": self._folder.name,
        }
        (folder / "data").mkdir(exist_ok=True)
        with (folder / "weed.log").open("ab") as out:
            self._process = subprocess.Popen(
                s3_command(self._ports, folder / "data", folder),
                env=env, cwd=folder, stdout=out, stderr=out,
            )  # fmt: skip
        self._wait()

    def client(self) -> Any:
        return make_client(self.bucket)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(timeout=20.0)

    def _wait(self) -> None:
        client, end = self.client(), time.monotonic() + START_MAX_S
        try:
            while True:
                try:
                    client.put_object(Bucket=BUCKET, Key="ready", Body=b"1")
                    client.get_object(Bucket=BUCKET, Key="ready")["Body"].read()
                    return
                except (ClientError, BotoCoreError) as error:
                    if time.monotonic() > end:
                        self.stop()
                        raise RuntimeError(f"the S3 server does not serve: {error}") from error
                time.sleep(0.05)
        finally:
            client.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self._folder.cleanup()
