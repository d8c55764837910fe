"""Endpoints for other programs: their addresses, and the access to them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.http.hosts import is_loopback
from astraflow.wire.server import ServerTls


class KedaConfig(Config):
    """Endpoint for KEDA, which has no run token: beyond loopback it presents a client certificate, or the port is
    open to every client."""

    host: Annotated[str, SettableBy.RECIPE] = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=9465, ge=0, lt=2**16)
    """Port to listen on; 0 takes a free one."""
    certificate: Annotated[Path | None, SettableBy.RECIPE] = None
    """Certificate to serve TLS with (PEM)."""
    key: Annotated[Path | None, SettableBy.RECIPE] = None
    """The certificate's key (PEM)."""
    client_ca: Annotated[Path | None, SettableBy.RECIPE] = None
    """Authority whose client certificates are accepted (PEM)."""
    is_open: bool = False
    """Listen beyond loopback without client certificates: clients can read targets and change nothing."""

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("cannot serve TLS: certificate and key belong together; set both or neither")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("cannot check client certificates: TLS needs a certificate and a key; set both")
        if not (is_loopback(self.host) or self.client_ca is not None or self.is_open):
            raise ValueError(
                f"cannot serve every client on {self.host!r}: set certificate, key and client_ca, or is_open = true"
            )
        return self

    @property
    def tls(self) -> ServerTls | None:
        """TLS settings of the server, None without a certificate. Raises: InvalidInput naming an unusable file."""
        if self.certificate is None or self.key is None:
            return None
        return ServerTls.read(self.certificate, self.key, self.client_ca)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsEndpoint:
    """Address of the endpoint (port 0 takes a free one), and the bearer token that it requires; empty: none."""

    host: str
    port: int
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise InvalidInput(
                f"cannot serve metrics on {self.host!r}: beyond loopback a token is required; set "
                "ASTRAFLOW_METRICS_TOKEN, or listen on 127.0.0.1",
                code="metrics.token_required",
            )


def metrics_endpoint(address: str, *, token: str) -> MetricsEndpoint | None:
    """Parses `HOST:PORT`; None for `off` or an empty text. Raises: InvalidInput."""
    if address in ("", "off"):
        return None
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 2**16):
        raise InvalidInput(
            f"cannot serve metrics on {address!r}: not an address; give HOST:PORT, for example 127.0.0.1:9464, or off",
            code="metrics.invalid_address",
        )

    return MetricsEndpoint(host=host.removeprefix("[").removesuffix("]"), port=int(port), token=token)
