"""Endpoints of a run: given as options, or found among the active runs of this machine."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from astraflow.access.authority import Authority
from astraflow.cli.options import TOKEN, read_token
from astraflow.cli.run_directory import folder_of
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import RunFolder, active_runs, runs_folder
from astraflow.wire.channel import ClientTls, ServiceChannel, authority_client_tls, dial

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEndpoint:
    """Address and credentials of a service of a run."""

    address: str
    token: str = field(repr=False)
    tls: ClientTls | None = None
    advertised: str = ""
    """Name under which other machines reach it; empty if unknown."""

    def dial(self) -> AbstractAsyncContextManager[ServiceChannel]:
        """Connects to the service for the block."""
        return dial(self.address, token=self.token, tls=self.tls)

    def call(self, client: Callable[[ServiceChannel], C], request: Callable[[C], Awaitable[T]]) -> T:
        """Makes one request of a client. Raises: the errors of the client."""

        async def connected() -> T:
            async with self.dial() as link:
                return await request(client(link))

        return asyncio.run(connected())


def find_run(address: str, token: str, token_file: Path | None, client_tls: ClientTls | None = None) -> RunEndpoint:
    """Returns the run at `address` with the given token; missing values come from the latest active run here.

    client_tls: given TLS settings, which replace those of the active run.
    Raises: InvalidInput when no run is active on this machine, `address` names an ended or unknown run, or no token is
    known.
    """
    address = _address_of_run(address)
    token = token or read_token(token_file)
    if address and token:
        return RunEndpoint(address=address, token=token, tls=client_tls)  # a given token implies given TLS options
    for directory in active_runs():
        facts = directory.facts
        if facts.dataflow and address in ("", facts.dataflow):
            return RunEndpoint(
                address=facts.dataflow,
                token=token or directory.token,
                tls=client_tls or _tls_of(directory),
                advertised=facts.enroll.rpartition(":")[0],
            )
    if address and ":" not in address:
        raise InvalidInput(
            f"cannot find the run {address!r}: no run of this machine has this name; `astraflow runs` lists them, and "
            "HOST:PORT is the address of one elsewhere",
            code="run_folder.unknown",
        )
    if address:
        raise InvalidInput(
            f"cannot call {address!r}: no token is known for it; ADDRESS is HOST:PORT of an active run: give its "
            f"--token-file, or set {TOKEN} to the run token (`astraflow view RUN` shows an ended run)",
            code="cli.no_token",
        )
    raise InvalidInput(
        f"cannot find a run: none is active in {str(runs_folder())!r}; start one (astraflow demo), or give ADDRESS and "
        "token of one elsewhere: for a run with --run-dir the field `dataflow` of its run.json, and its file `token`",
        code="cli.no_active_run",
    )


def find_fleet(address: str, token: str, token_file: Path | None, client_tls: ClientTls | None = None) -> RunEndpoint:
    """Returns the fleet service at `address`, or the fleet service of the latest active run on this machine.

    Raises: InvalidInput when no such run is active, or no token is known for `address`.
    """
    token = token or read_token(token_file)
    if address and token:
        return RunEndpoint(address=address, token=token, tls=client_tls)
    for directory in active_runs():
        facts = directory.facts
        if facts.fleet and address in ("", facts.fleet):
            tls = client_tls or _tls_of(directory)
            return RunEndpoint(address=facts.fleet, token=token or directory.token, tls=tls)
    if address:
        raise InvalidInput(
            f"cannot call {address!r}: no token is known for it; give --token-file, or set {TOKEN} to the run token",
            code="cli.no_token",
        )
    raise InvalidInput(
        "cannot find a fleet service: no active run on this machine has one; start one (astraflow run RECIPE --fleet), "
        "or give --address HOST:PORT and its token",
        code="cli.no_active_run",
    )


def _tls_of(directory: RunFolder) -> ClientTls | None:
    return authority_client_tls(Authority.load(directory.authority)) if directory.facts.is_tls else None


def _address_of_run(address: str) -> str:
    """Returns the address of the dataflow service: that of the active run whose folder or name is given. Raises:
    InvalidInput for an ended run, with the way to look at it."""
    if not address or ":" in address or not folder_of(address).exists():
        return address
    folder = RunFolder(folder_of(address))
    if folder.is_active:
        return folder.facts.dataflow
    remedy = f"it has ended: look at it with `astraflow view {address}` (track and trajectories take it as --run-dir)"
    raise InvalidInput(
        f"cannot call the run {address!r}: ADDRESS is HOST:PORT of a dataflow service, or the name or folder of an "
        f"active run; {remedy}",
        code="cli.not_an_address",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneEndpoints:
    """Addresses of dataflow and the fleet service of a run, with credentials."""

    dataflow: str
    fleet: str
    token: str = field(repr=False)
    authority: Path | None = None
    maintainer_directory: Path = Path("maintainer-state")
    """State folder of the maintainer; below the run directory for a run on this machine."""

    @property
    def fleet_endpoint(self) -> RunEndpoint:
        """Fleet service. Raises: InvalidInput for a folder without an authority."""
        tls = authority_client_tls(Authority.load(self.authority)) if self.authority else None
        return RunEndpoint(address=self.fleet, token=self.token, tls=tls)


def find_planes(dataflow: str, fleet: str, token: str, authority: Path | None) -> PlaneEndpoints:
    """Returns the given endpoints; missing values come from the latest active run here that has a fleet service.

    Raises: InvalidInput when there is none.
    """
    if dataflow and fleet and token:
        return PlaneEndpoints(dataflow=dataflow, fleet=fleet, token=token, authority=authority)
    for directory in active_runs():
        facts = directory.facts
        if facts.fleet and fleet in ("", facts.fleet) and dataflow in ("", facts.dataflow):
            run_authority = directory.authority if facts.is_tls else None
            return PlaneEndpoints(
                dataflow=facts.dataflow,
                fleet=facts.fleet,
                token=token or directory.token,
                authority=authority or run_authority,
                maintainer_directory=directory.path / "maintainer",
            )
    if fleet and token:
        return PlaneEndpoints(dataflow=dataflow, fleet=fleet, token=token, authority=authority)
    raise InvalidInput(
        "cannot find a fleet service: no active run on this machine has one; start one (astraflow run RECIPE --fleet), "
        f"or give --dataflow, --fleet and a token ({TOKEN})",
        code="cli.no_active_run",
    )


def client_tls(
    ca: Path | None, certificate: Path | None, key: Path | None, authority: Path | None = None
) -> ClientTls | None:
    """Returns the TLS settings of a client; None without TLS.

    authority: folder of the run's authority, which issues a certificate for this process.
    Raises: InvalidInput for an incomplete pair of options or invalid files.
    """
    if authority is not None:
        return authority_client_tls(Authority.load(authority))
    if ca is None and certificate is None and key is None:
        return None
    if ca is None or (certificate is None) != (key is None):
        raise InvalidInput(
            "cannot use TLS: an option is missing; give --tls-ca, and --tls-client-certificate and --tls-client-key "
            "only together",
            code="tls.incomplete_options",
        )
    return ClientTls.read(ca, certificate, key)
