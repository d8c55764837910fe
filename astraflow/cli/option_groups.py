"""Groups of options of several commands: one parameter of a command, a dataclass with a field for each option."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from astraflow.cli.options import (
    Authority,
    Tls,
    TlsCa,
    TlsClientCertificate,
    TlsClientKey,
    Token,
    TokenFile,
    read_token,
)

if TYPE_CHECKING:
    from astraflow.cli.run_endpoints import RunEndpoint
    from astraflow.wire.channel import ClientTls

RunHost = Annotated[
    str,
    typer.Option(help="Address of this machine for nodes on other machines, which cannot join at a loopback address."),
]
FirstPort = Annotated[
    int,
    typer.Option(
        "--ports",
        metavar="FIRST",
        min=0,
        max=65532,
        help="First of four ports on --host, in this order: joining nodes, dataflow, weights, fleet; 0 selects free "
        "ones, different at each start.",
    ),
]
Advertised = Annotated[
    str,
    typer.Option(
        "--advertise", metavar="NAME", help="Name or address under which other machines reach --host, if it differs."
    ),
]

R = TypeVar("R")


def with_groups(command: Callable[..., R]) -> Callable[..., R]:
    """Gives a command the options of its groups, after its own; groups are its parameters that are dataclasses."""
    parameters = signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in parameters if is_dataclass(parameter.annotation)
    }
    options = {name: _parameters(group) for name, group in groups.items()}
    own = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters if parameter.name not in groups]
    everything = [*own, *(option for name in groups for option in options[name])]

    @wraps(command)
    def call(**values: Any) -> R:
        built = {
            name: group(**{option.name: values.pop(option.name) for option in options[name]})
            for name, group in groups.items()
        }
        return command(**values, **built)

    call.__signature__ = Signature(everything)  # type: ignore[attr-defined]  # typer reads it
    call.__annotations__ = {option.name: option.annotation for option in everything}
    return call


def _parameters(group: type[Any]) -> list[Parameter]:
    """Returns a parameter for each field; those of a class before those that it inherits."""
    hints, defaults = get_type_hints(group, include_extras=True), {}
    for option in fields(group):
        defaults[option.name] = option.default if option.default_factory is MISSING else option.default_factory()
    names = (name for class_ in group.__mro__ for name in vars(class_).get("__annotations__", ()))
    return [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if defaults[name] is MISSING else defaults[name],
            annotation=hints[name],
        )
        for name in dict.fromkeys(names)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsGroup:
    """Files of a client's TLS connection."""

    tls_ca: TlsCa = None
    tls_client_certificate: TlsClientCertificate = None
    tls_client_key: TlsClientKey = None

    def tls_of(self, authority: Authority = None) -> "ClientTls | None":
        """Returns the TLS settings; None without TLS. Raises: InvalidInput for an incomplete pair of files."""
        from astraflow.cli.run_endpoints import client_tls

        return client_tls(self.tls_ca, self.tls_client_certificate, self.tls_client_key, authority)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGroup(TlsGroup):
    """Credentials of a process that is a client of a run's services."""

    token_file: TokenFile = None
    authority: Authority = None

    def read_token(self) -> str:
        """Returns the run token; empty without one. Raises: InvalidInput."""
        return read_token(self.token_file)

    def tls(self) -> "ClientTls | None":
        """Returns the TLS settings; None without TLS. Raises: InvalidInput."""
        return self.tls_of(self.authority)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup(ClientGroup):
    """Credentials of a command that calls a service, by default of the run on this machine."""

    token: Token = ""

    def find_run(self, address: str) -> "RunEndpoint":
        """Returns the dataflow service to call. Raises: InvalidInput when it is unknown."""
        from astraflow.cli.run_endpoints import find_run

        return find_run(address, self.token, self.token_file, self.tls())

    def find_fleet(self, address: str) -> "RunEndpoint":
        """Returns the fleet service to call. Raises: InvalidInput when it is unknown."""
        from astraflow.cli.run_endpoints import find_fleet

        return find_fleet(address, self.token, self.token_file, self.tls())


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup(TlsGroup):
    """Credentials of a node that joins a run, by default the run on this machine."""

    token: Token = ""
    token_file: TokenFile = None

    def find_run(self, address: str) -> "RunEndpoint":
        """Returns the dataflow service to join. Raises: InvalidInput when it is unknown."""
        from astraflow.cli.run_endpoints import find_run

        return find_run(address, self.token, self.token_file, self.tls_of())


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Options of the addresses at which a run's services listen."""

    host: RunHost = "127.0.0.1"
    advertise: Advertised = ""
    ports: FirstPort = 0
    tls: Tls = None
