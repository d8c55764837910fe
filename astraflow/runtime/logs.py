"""Structured logs: an event name and keys. Console format on a terminal, JSON otherwise; secrets are redacted."""

import contextlib
import logging
import sys
from typing import Any, TextIO, cast

import structlog

_SECRET_KEYS = ("token", "secret", "password", "authorization", "api_key")


def configure(*, level: str = "INFO", as_json: bool | None = None) -> None:
    """Configures structlog for this process, on standard error. as_json: by default, unless standard error is a
    terminal."""
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
        # Plain tracebacks: rich ones print local variables, which may be secrets or take minutes to print.
        shared += [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _PatientStderr())),
        cache_logger_on_first_use=False,
    )


def bind(**keys: Any) -> None:
    """Adds keys to every later log line of this process."""
    structlog.contextvars.bind_contextvars(**keys)


def get_logger() -> Any:
    return structlog.get_logger()


class _PatientStderr:
    """Standard error that ignores write errors: a full disk must not stop a service."""

    def write(self, text: str) -> None:
        """Writes if possible."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flushes if possible."""
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def _redact(_logger: Any, _method: str, event: Any) -> Any:
    for key in event:
        if any(secret in key.lower() for secret in _SECRET_KEYS):
            event[key] = "[redacted]"
    return event
