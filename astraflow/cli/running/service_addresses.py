"""Addresses of a run: those of its services, of its metrics for KEDA, and of its traces."""

import os
from dataclasses import dataclass
from pathlib import Path

from astraflow.cli.ports import free_ports, is_free
from astraflow.contract.errors import InvalidInput
from astraflow.dataflow.endpoint_config import KedaConfig
from astraflow.recipe.config import Recipe
from astraflow.runtime.http.hosts import WILDCARDS, host_port, is_loopback, require_reachable_host
from astraflow.runtime.tracing import TRACES, format_tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddresses:
    """Addresses of the services of a run; stay the same across restarts of the services."""

    host: str
    """Address that the services listen on."""
    advertised: str
    """Name or address under which other machines reach the services; `host` unless they need another one."""
    dataflow_port: int
    weights_port: int
    web_port: int
    enroll_port: int
    is_tls: bool
    """True if the services use mutual TLS."""
    fleet_port: int
    metrics: str
    """`HOST:PORT` where dataflow serves metrics, or `off`."""

    @property
    def dataflow(self) -> str:
        """`HOST:PORT` of dataflow for processes of this machine."""
        return host_port(self._local_host, self.dataflow_port)

    @property
    def weights(self) -> str:
        """`HOST:PORT` of the weight store for all nodes and trainers."""
        return host_port(self.advertised, self.weights_port)

    @property
    def enroll(self) -> str:
        """`HOST:PORT` where joining processes get a certificate; empty without TLS."""
        return host_port(self.advertised, self.enroll_port) if self.is_tls else ""

    @property
    def fleet(self) -> str:
        """`HOST:PORT` of the fleet service for processes of this machine."""
        return host_port(self._local_host, self.fleet_port)

    @property
    def metrics_url(self) -> str:
        """URL of the metrics; empty when they are off."""
        return "" if self.metrics == "off" else f"http://{self.metrics}/metrics"

    @property
    def _local_host(self) -> str:
        """Host for processes of this machine: loopback where the services listen on all addresses."""
        return "127.0.0.1" if self.host in WILDCARDS else self.host


def choose_addresses(
    host: str, *, advertise: str, tls: bool | None, web_port: int, metrics: str, first_port: int = 0
) -> ServiceAddresses:
    """Chooses ports on `host`.

    advertise: name under which other machines reach it; empty for `host` itself. tls: None for TLS beyond loopback
    only. metrics: value of the recipe; empty for a free port of loopback. first_port: first of four consecutive ports
    for joining nodes, dataflow, weights and fleet; 0 for free ones.
    Raises: InvalidInput for a port or an address that cannot be used.
    """
    if host in WILDCARDS and not advertise:
        raise InvalidInput(
            f"cannot advertise {host!r}: it stands for all addresses; set --host to an address that other machines "
            "reach, or add --advertise with it",
            code="cli.no_advertised_address",
        )
    if advertise:
        require_reachable_host(advertise, what="--advertise")
        if is_loopback(host):
            raise InvalidInput(
                f"cannot advertise {advertise!r}: the services listen on {host!r}, which other machines cannot reach; "
                "set --host to an address that they reach",
                code="cli.unreachable_host",
            )
    if web_port:
        _require_free(web_port, host="127.0.0.1", option="--port (0 selects a free one)")
    enroll_port, dataflow_port, weights_port, fleet_port = _service_ports(first_port, host=host)
    return ServiceAddresses(
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


def _service_ports(first_port: int, *, host: str) -> list[int]:
    """Returns four consecutive ports from `first_port` on, or free ones for 0. Raises: InvalidInput."""
    if not first_port:
        return free_ports(4, host=host)
    ports = list(range(first_port, first_port + 4))
    for port in ports:
        _require_free(port, host=host, option="--ports")
    return ports


def _require_free(port: int, *, host: str, option: str) -> None:
    """Raises: InvalidInput when no service can listen on the port."""
    if not is_free(port, host=host):
        raise InvalidInput(
            f"cannot listen on port {port}: it is in use; stop the process that uses it, or choose another {option}",
            code="cli.port_in_use",
        )


def keda_address(recipe: Recipe) -> str:
    """Returns the `HOST:PORT` where dataflow serves KEDA; empty when it does not. Raises: InvalidInput."""
    values = recipe.dataflow.get("keda")
    if values is None:
        return ""
    config = KedaConfig.parse(values, where="dataflow.keda")
    return f"{config.host}:{config.port}"


def traces_destination(recipe: Recipe, directory: Path) -> str:
    """Returns the destination of spans in the form of ASTRAFLOW_TRACES; empty for none.

    A relative folder of the recipe is below the run directory.
    """
    if TRACES in os.environ:
        return os.environ[TRACES]
    to = recipe.tracing.to
    destination = to if "://" in to else str(directory / to)
    return format_tracing(recipe.tracing.model_copy(update={"to": destination})) if to else ""
