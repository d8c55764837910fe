"""Command-line options that several commands share, and the values they stand for."""

import os
from pathlib import Path
from typing import Annotated

import typer

from astraflow.contract.errors import InvalidInput

TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the name of the variable, not the token)
"""Environment variable that holds the run token."""

TOKEN_FILE = "ASTRAFLOW_TOKEN_FILE"  # noqa: S105 (the same)
"""Environment variable that names a file which holds it, where there is no `TOKEN`."""

AUTHORITY = "ASTRAFLOW_AUTHORITY"
"""Environment variable that names the folder of the run's authority."""

METRICS_TOKEN = "ASTRAFLOW_METRICS_TOKEN"  # noqa: S105 (the name of the variable, not the token)
"""Environment variable that holds what readers of the metrics must show."""

Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override one value of the recipe, as in stop.steps=50."),
]
RecipeArgument = Annotated[str, typer.Argument(help="Name of a recipe (see: astraflow recipes), or a path to one.")]
Address = Annotated[
    str,
    typer.Argument(metavar="[ADDRESS]", help="HOST:PORT of the dataflow service; the run on this machine by default."),
]
Token = Annotated[str, typer.Option(help=f"The run token; better in a file, or in the variable {TOKEN}.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help=f"File that holds the run token; otherwise {TOKEN} does, or the file in {TOKEN_FILE}."),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Metrics = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="Serve OpenMetrics there (dataflow.metrics); `off` for nowhere."),
]
Directory = Annotated[Path, typer.Option(help="Where it keeps what must survive a restart.")]
WeightsKey = Annotated[
    str,
    typer.Option(help="Public key that must have signed the run's versions: the line in `weights.pub`, or its path."),
]
SigningKeyFile = Annotated[
    Path | None, typer.Option(help="Sign versions with this key: `weights.key` of the run directory.")
]
Authority = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", envvar=AUTHORITY, help="The run's certificate authority: `authority` in its directory."
    ),
]
Tls = Annotated[
    bool | None,
    typer.Option("--tls/--no-tls", help="Mutual TLS with the run's own certificates; by default beyond loopback only."),
]
Advertise = Annotated[
    list[str], typer.Option(metavar="NAME", help="Another name or address under which the service is reached.")
]
CaHash = Annotated[
    str,
    typer.Option(
        metavar="sha256:...",
        help="Pin of the run's authority, or a file with it, for the run token; join tokens have it.",
    ),
]
Keep = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep the credential there, to come back without a token."),
]
TlsCertificate = Annotated[Path | None, typer.Option(help="Serve TLS with this certificate (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")]
TlsClientCa = Annotated[
    Path | None, typer.Option(help="Let in only clients with a certificate of this authority (PEM).")
]
TlsCa = Annotated[
    Path | None, typer.Option(help="Reach services over TLS and check them against this authority (PEM).")
]
TlsClientCertificate = Annotated[Path | None, typer.Option(help="Certificate to show to services that ask (PEM).")]
TlsClientKey = Annotated[Path | None, typer.Option(help="The client certificate's key (PEM).")]


def read_token(file: Path | None) -> str:
    """The run token from `file`, or from the environment; empty when there is none.

    Raises: InvalidInput for a file that cannot be read or is empty.
    """
    token, named = os.environ.get(TOKEN, ""), os.environ.get(TOKEN_FILE, "")
    if file is None and (token or not named):
        return token
    return _line(file or Path(named), what="token")


def read_pin(given: str) -> str:
    """The pin of the run's authority: `given`, or the line in the file that it names. Raises: InvalidInput."""
    return _line(Path(given), what="pin") if os.sep in given else given


def read_weights_key(given: str) -> str:
    """The public key of the run's versions: `given`, or the line in the file that it names. Raises: InvalidInput."""
    return _line(Path(given), what="key") if os.sep in given else given  # its base64 is the one without slashes


def _line(file: Path, *, what: str) -> str:
    try:
        line = file.read_text().strip()
    except OSError as problem:
        raise InvalidInput(f"the {what} file {file} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"the {what} file {file} holds no text") from None
    if not line:
        raise InvalidInput(f"the {what} file {file} is empty: it must hold the run's {what}")
    return line
