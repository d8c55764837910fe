"""Preemption notice from the instance metadata service of a cloud."""

import http.client
import ipaddress
import json
from collections.abc import Mapping
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from astraflow.contract.errors import Unavailable
from astraflow.raas.preemption import notices
from astraflow.raas.preemption.base import Notice, parse_time
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_TIMEOUT_S = 1.0
_MAX_BYTES = 4096
_TOKEN_LIFETIME_S = 21_600
"""Lifetime of a session token; after a refused token the next poll requests a new one."""


class HttpNoticeOptions(Config):
    """Address of the metadata service. The defaults fit EC2 spot instances (instance metadata, version 2).

    For Google Cloud: `url = "http://169.254.169.254/computeMetadata/v1/instance/preempted"`, `token_url = ""`,
    `headers = { Metadata-Flavor = "Google" }` and `deadline_s = 30`.
    """

    url: Annotated[str, SettableBy.RECIPE] = "http://169.254.169.254/latest/meta-data/spot/instance-action"
    """URL of the notice. The server answers 404 or `FALSE` while there is no notice; a JSON object may name its
    `time`."""
    token_url: Annotated[str, SettableBy.RECIPE] = "http://169.254.169.254/latest/api/token"  # noqa: S105 (an address, no token)
    """URL that returns a session token for PUT; empty when no token is needed."""
    headers: Annotated[dict[str, str], SettableBy.RECIPE] = {}  # noqa: RUF012 (pydantic copies it)
    """Headers of each request."""
    poll_interval_s: float = Field(default=5.0, gt=0)
    """Seconds between two requests."""
    deadline_s: float = Field(default=120.0, ge=0)
    """Seconds from the first poll with a notice to the preemption, for a notice that names no time."""

    @field_validator("url", "token_url")
    @classmethod
    def _check_is_local(cls, value: str) -> str:
        return value if not value or _is_local(value) else _refuse(value)

    @model_validator(mode="after")
    def _check_has_url(self) -> Self:
        if not self.url:
            raise ValueError("cannot poll for notices: url is empty; set it, or use the kind 'none'")
        return self


@notices.register("http", options=HttpNoticeOptions)
class HttpNotice:
    """Asks a metadata service over plain HTTP on this machine only: no proxies, no redirects, no other hosts."""

    def __init__(self, options: HttpNoticeOptions) -> None:
        self._options = options
        self.poll_interval_s = options.poll_interval_s
        self._token = ""

    def poll(self, now: float) -> Notice | None:
        """Returns the notice, if there is one. Raises: Unavailable without an answer or for an unexpected one."""
        options = self._options
        if options.token_url and not self._token:
            self._token = self._new_token()
        token_header = {"X-aws-ec2-metadata-token": self._token} if self._token else {}
        status, body = _request("GET", options.url, {**options.headers, **token_header})
        if status == http.HTTPStatus.UNAUTHORIZED:
            self._token = ""
        if status == http.HTTPStatus.NOT_FOUND or (status == http.HTTPStatus.OK and body.upper() == "FALSE"):
            return None
        if status != http.HTTPStatus.OK:
            raise Unavailable(
                f"cannot read the preemption notice: {options.url!r} answered with status {status}; set the url of a "
                "metadata service that answers 200 or 404",
                code="preemption.unexpected_answer",
            )
        return Notice(at=_time_of(body) or now + options.deadline_s, source=options.url)

    def _new_token(self) -> str:
        url = self._options.token_url
        status, body = _request("PUT", url, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFETIME_S)})
        if status != http.HTTPStatus.OK or not (body.isascii() and body.isprintable()):
            raise Unavailable(
                f"cannot get a session token: {url!r} answered with status {status}; check token_url",
                code="preemption.no_session_token",
            )
        return body


def _request(method: str, url: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Returns status and body of one request. Raises: Unavailable."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_TIMEOUT_S)
    try:
        connection.request(method, f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}", headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read(_MAX_BYTES).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as problem:
        raise Unavailable(
            f"cannot reach {url!r}: {type(problem).__name__}: {problem}; check that this machine has a metadata "
            "service",
            code="preemption.unreachable",
        ) from problem
    finally:
        connection.close()


def _time_of(body: str) -> float | None:
    try:
        content = json.loads(body)
    except ValueError:
        return None
    time = content.get("time") if isinstance(content, dict) else None
    return parse_time(time) if isinstance(time, str) else None


def _is_local(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, is_port_valid = parts.hostname or "", parts.port != 0
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return False
    return parts.scheme == "http" and is_port_valid and (address.is_loopback or address.is_link_local)


def _refuse(url: str) -> str:
    raise ValueError(
        f"cannot poll {url!r}: it is not an http address of this machine; use a loopback or link-local IP address "
        "such as http://169.254.169.254/..."
    )
