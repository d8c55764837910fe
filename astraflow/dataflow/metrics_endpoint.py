"""Address and access of the metrics endpoint."""

from dataclasses import dataclass, field

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.http.hosts import is_loopback


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
