"""Where metrics are served, and who may read them."""

from dataclasses import dataclass, field

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.hosts import is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsDoor:
    """Where the endpoint listens (port 0 takes a free one), and the bearer token it wants, if any."""

    host: str
    port: int
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise InvalidInput(
                f"refusing to serve metrics on {self.host} without a token: set ASTRAFLOW_METRICS_TOKEN, or listen on "
                "127.0.0.1"
            )


def metrics_door(address: str, *, token: str) -> MetricsDoor | None:
    """The door that `HOST:PORT` means; None for `off` or nothing. Raises: InvalidInput."""
    if address in ("", "off"):
        return None
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 2**16):
        raise InvalidInput(f"metrics: {address!r} is no place to listen: give HOST:PORT, as in 127.0.0.1:9464, or off")
    return MetricsDoor(host=host.removeprefix("[").removesuffix("]"), port=int(port), token=token)
