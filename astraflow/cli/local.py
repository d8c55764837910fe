"""Finding the run of this machine, for whoever does not say which."""

from dataclasses import dataclass, field
from pathlib import Path

from astraflow.access.authority import Authority
from astraflow.cli.options import TOKEN, read_token
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.runs import active_runs
from astraflow.wire.channel import ClientTls, authority_client_tls


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where a run is, and what opens it."""

    address: str
    token: str = field(repr=False)
    tls: ClientTls | None = None
    advertised: str = ""
    """Under which name other machines reach it; empty where nothing says so."""


def find_run(address: str, token: str, token_file: Path | None) -> Door:
    """The run at `address` with the token that was given; what was left out is taken from the latest active run here.

    Raises: InvalidInput when no run is active on this machine, or no token is known for `address`.
    """
    token = token or read_token(token_file)
    if address and token:
        return Door(address=address, token=token)  # with a token of their own, people say how to reach it too
    for directory in active_runs():
        facts = directory.facts
        if facts.dataflow and address in ("", facts.dataflow):
            tls = authority_client_tls(Authority.opened(directory.authority)) if facts.is_tls else None
            advertised = facts.enroll.rpartition(":")[0]
            return Door(address=facts.dataflow, token=token or directory.token, tls=tls, advertised=advertised)
    if address:
        raise InvalidInput(f"no token for {address}: give --token-file, or set {TOKEN} to the run's token")
    raise InvalidInput("no run is active on this machine: start one (astraflow demo), or give its ADDRESS and token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planes:
    """Where the control plane and the fleet plane of a run are, and what opens them."""

    dataflow: str
    fleet: str
    token: str = field(repr=False)
    authority: Path | None = None
    maintainer: Path = Path("maintainer-state")
    """Where what looks after the run keeps things: a folder of the run's, when it is one of this machine."""


def find_planes(dataflow: str, fleet: str, token: str, authority: Path | None) -> Planes:
    """Those that were given; what was left out is taken from the latest active run here that has a fleet service.

    Raises: InvalidInput when there is none.
    """
    if dataflow and fleet and token:
        return Planes(dataflow=dataflow, fleet=fleet, token=token, authority=authority)
    for directory in active_runs():
        facts = directory.facts
        if facts.fleet and fleet in ("", facts.fleet) and dataflow in ("", facts.dataflow):
            own = directory.authority if facts.is_tls else None
            return Planes(
                dataflow=facts.dataflow,
                fleet=facts.fleet,
                token=token or directory.token,
                authority=authority or own,
                maintainer=directory.path / "maintainer",
            )
    if fleet and token:
        return Planes(dataflow=dataflow, fleet=fleet, token=token, authority=authority)
    raise InvalidInput(
        "no run with a fleet service is active on this machine: start one (astraflow run RECIPE --fleet), or give "
        f"--dataflow, --fleet and a token ({TOKEN})"
    )
