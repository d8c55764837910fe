"""A notice as clouds give it: at an address that only the machine itself can reach."""

import http.client
import ipaddress
import json
from collections.abc import Mapping
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from astraflow.contract.errors import Unavailable
from astraflow.raas.preemption import notices
from astraflow.raas.preemption.base import Notice, time_in
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy

_TIMEOUT_S = 1.0
_MAX_BYTES = 4096
_TOKEN_S = 21_600
"""A session token lasts this long; when it is refused, the next look gets a new one."""


class HttpNoticeOptions(Config):
    """Where to look. The defaults are those of EC2 spot instances (instance metadata, version 2).

    For Google Cloud: `url = "http://169.254.169.254/computeMetadata/v1/instance/preempted"`, `token_url = ""`,
    `headers = { Metadata-Flavor = "Google" }` and `deadline_s = 30`.
    """

    url: Annotated[str, SetBy.RECIPE] = "http://169.254.169.254/latest/meta-data/spot/instance-action"
    """Answers 404 or `FALSE` while there is no notice. A JSON object may name its `time`."""
    token_url: Annotated[str, SetBy.RECIPE] = "http://169.254.169.254/latest/api/token"  # noqa: S105 (where to get one)
    """Where a session token is had with PUT; empty when none is needed."""
    headers: Annotated[dict[str, str], SetBy.RECIPE] = {}  # noqa: RUF012 (pydantic copies it)
    """Sent with each look."""
    every_s: float = Field(default=5.0, gt=0)
    """How often it is asked."""
    deadline_s: float = Field(default=120.0, ge=0)
    """From the first sight of a notice to the end, where it does not say when that is."""

    @field_validator("url", "token_url")
    @classmethod
    def _is_of_this_machine(cls, value: str) -> str:
        return value if not value or _is_local(value) else _refuse(value)

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        if not self.url:
            raise ValueError("url is empty: name where to look, or choose the kind none")
        return self


@notices.register("http", options=HttpNoticeOptions)
class HttpNotice:
    """Asks over plain HTTP, of this machine only: no proxies, no redirects, no other hosts."""

    def __init__(self, options: HttpNoticeOptions) -> None:
        self._options = options
        self.every_s = options.every_s
        self._token = ""

    def look(self, now: float) -> Notice | None:
        """The notice. Raises: Unavailable when there is no answer, or none that can be understood."""
        options = self._options
        if options.token_url and not self._token:
            self._token = self._new_token()
        known = {"X-aws-ec2-metadata-token": self._token} if self._token else {}
        status, body = _asked("GET", options.url, {**options.headers, **known})
        if status == http.HTTPStatus.UNAUTHORIZED:
            self._token = ""
        if status == http.HTTPStatus.NOT_FOUND or (status == http.HTTPStatus.OK and body.upper() == "FALSE"):
            return None
        if status != http.HTTPStatus.OK:
            raise Unavailable(f"{options.url} answers with status {status} instead of a notice or 404")
        return Notice(at=_time_of(body) or now + options.deadline_s, source=options.url)

    def _new_token(self) -> str:
        url = self._options.token_url
        status, body = _asked("PUT", url, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)})
        if status != http.HTTPStatus.OK or not (body.isascii() and body.isprintable()):
            raise Unavailable(f"{url} gives no session token (status {status})")
        return body


def _asked(method: str, url: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Status and body of one request. Raises: Unavailable."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_TIMEOUT_S)
    try:
        connection.request(method, f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}", headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read(_MAX_BYTES).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as problem:
        raise Unavailable(f"{url} does not answer: {type(problem).__name__}: {problem}") from problem
    finally:
        connection.close()


def _time_of(body: str) -> float | None:
    try:
        said = json.loads(body)
    except ValueError:
        return None
    time = said.get("time") if isinstance(said, dict) else None
    return time_in(time) if isinstance(time, str) else None


def _is_local(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, has_port = parts.hostname or "", parts.port != 0
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return False
    return parts.scheme == "http" and has_port and (address.is_loopback or address.is_link_local)


def _refuse(url: str) -> str:
    raise ValueError(
        f"{url!r} is not an http address of this machine: notices are read at a loopback or link-local IP address, "
        "as in http://169.254.169.254/..."
    )
