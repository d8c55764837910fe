"""Where the services of a run listen, and where others find them."""

from dataclasses import dataclass

from astraflow.cli.ports import free_ports, is_free
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.hosts import WILDCARDS, host_port, is_loopback, reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the services of a run listen: chosen once, the same after every restart."""

    host: str
    """Address that they listen on."""
    advertised: str
    """Name or address under which machines elsewhere reach them; the host's own where nothing stands in between."""
    dataflow_port: int
    weights_port: int
    web_port: int
    enroll_port: int
    is_tls: bool
    """Whether the services speak mutual TLS."""
    fleet_port: int
    metrics: str
    """`HOST:PORT` where dataflow serves metrics, or `off`."""

    @property
    def dataflow(self) -> str:
        """`HOST:PORT` for this machine's own processes."""
        return host_port(self._here, self.dataflow_port)

    @property
    def weights(self) -> str:
        """`HOST:PORT` that every node and trainer is told, wherever it stands."""
        return host_port(self.advertised, self.weights_port)

    @property
    def enroll(self) -> str:
        """`HOST:PORT` where those who join get a certificate; empty without TLS."""
        return host_port(self.advertised, self.enroll_port) if self.is_tls else ""

    @property
    def fleet(self) -> str:
        """`HOST:PORT` for this machine's own processes."""
        return host_port(self._here, self.fleet_port)

    @property
    def metrics_url(self) -> str:
        """Where to read the metrics; empty for nowhere."""
        return "" if self.metrics == "off" else f"http://{self.metrics}/metrics"

    @property
    def _here(self) -> str:
        """How this machine's own processes reach them: not the long way round."""
        return "127.0.0.1" if self.host in WILDCARDS else self.host


def chosen_places(host: str, *, advertise: str, tls: bool | None, web_port: int, metrics: str) -> Places:
    """Free ports on `host`.

    advertise: under which name others reach it; empty for `host` itself. tls: None for beyond loopback only.
    metrics: as the recipe has it; a free port of loopback when it has none.
    Raises: InvalidInput for a port or an address that cannot be used.
    """
    if host in WILDCARDS and not advertise:
        raise InvalidInput(
            f"{host} is every address and none: give --host the one under which others reach this machine, or that "
            "one as --advertise"
        )
    if advertise:
        reachable(advertise, what="--advertise")
        if is_loopback(host):
            raise InvalidInput(
                f"--advertise {advertise} goes with a --host that machines elsewhere reach: {host} lets in none"
            )
    if web_port and not is_free(web_port):
        raise InvalidInput(
            f"port {web_port} is in use: stop what holds it, or choose another --port (0 takes a free one)"
        )
    dataflow_port, weights_port, enroll_port, fleet_port = free_ports(4, host=host)
    return Places(
        host=host,
        advertised=advertise or host,
        dataflow_port=dataflow_port,
        weights_port=weights_port,
        enroll_port=enroll_port,
        is_tls=not is_loopback(host) if tls is None else tls,
        fleet_port=fleet_port,
        web_port=web_port or free_ports(1)[0],
        metrics=metrics or f"127.0.0.1:{free_ports(1)[0]}",
    )
