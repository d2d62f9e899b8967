"""Log lines: one line each, `key=value`, to stderr, so that people and `grep` can read them."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_request: ContextVar[str] = ContextVar("moonpool_request", default="")

_LEVELS = {"debug", "info", "warning", "error"}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextmanager
def request_scope(request_id: str) -> Iterator[None]:
    """Lines logged inside, also by tasks started there, carry `request=<id>`."""
    token = _request.set(request_id)
    try:
        yield
    finally:
        _request.reset(token)


class KeyValueFormatter(logging.Formatter):
    """`time=.. level=.. service=.. id=.. msg=".." [request=..] [extra=..] [error=".."]`"""

    def __init__(self, service: str, id: str) -> None:
        super().__init__()
        self._fixed = f"service={_quote(service)} id={_quote(id)}"

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        parts = [
            f"time={moment.replace('+00:00', 'Z')}",
            f"level={record.levelname.lower()}",
            self._fixed,
            f"msg={_quote(record.getMessage())}",
        ]
        fields = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        request = fields.pop("request", "") or _request.get()
        if request:
            parts.append(f"request={_quote(str(request))}")
        parts += [f"{key}={_quote(str(value))}" for key, value in fields.items()]
        if record.exc_info:
            parts.append(f"error={_quote(self.formatException(record.exc_info))}")
        return " ".join(parts)


def setup_logging(level: str, service: str, id: str) -> logging.Logger:
    """Sends all logging of this process to stderr in our format; returns the service's logger.
    ValueError on an unknown level. Calling it again replaces the earlier set-up."""
    if level.lower() not in _LEVELS:
        raise ValueError(f"log level {level!r} is none of {sorted(_LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter(service, id))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "botocore", "urllib3", "asyncio", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return logging.getLogger(f"moonpool.{service}")


def _quote(text: str) -> str:
    if text and not any(c in ' "=\\' or ord(c) < 32 for c in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    escaped = "".join(c if ord(c) >= 32 else f"\\x{ord(c):02x}" for c in escaped)
    return f'"{escaped}"'
