"""Logs: an event name and keys. Console when a person looks, JSON otherwise; secrets never."""

import contextlib
import logging
import sys
from typing import Any, TextIO, cast

import structlog

_SECRET_KEYS = ("token", "secret", "password", "authorization", "api_key")


def configure(*, level: str = "INFO", as_json: bool | None = None) -> None:
    """Set up structlog for this process, on standard error. `as_json` defaults to whether nobody is looking."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _redact,
        structlog.processors.StackInfoRenderer(),
    ]
    if as_json:
        shared += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        shared += [structlog.dev.ConsoleRenderer()]
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Patient(sys.stderr))),
        cache_logger_on_first_use=False,
    )


def bind(**keys: Any) -> None:
    """Put keys on every later line of this process."""
    structlog.contextvars.bind_contextvars(**keys)


def get_logger() -> Any:
    """A structlog logger."""
    return structlog.get_logger()


class _Patient:
    """A stream whose failures cost lines, not the process: a log file on a full disk must not stop a service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write, if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def _redact(_logger: Any, _method: str, event: Any) -> Any:
    for key in event:
        if any(secret in key.lower() for secret in _SECRET_KEYS):
            event[key] = "[redacted]"
    return event
