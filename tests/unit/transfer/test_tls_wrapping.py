import socket
import ssl
import struct
from pathlib import Path

import pytest

from moonpool.transfer.tls import _Closing


def test_a_connection_that_ends_while_it_is_wrapped_leaves_nothing_open() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.sslsocket_class = _Closing
    before = _open_files()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()  # a reset
        with pytest.raises(ConnectionResetError):
            context.wrap_socket(near, do_handshake_on_connect=False)
    near.close()
    assert _open_files() == before


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
