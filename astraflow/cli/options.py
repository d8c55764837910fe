"""Command-line options shared by several commands, and the values they select."""

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from astraflow.contract.errors import InvalidInput

TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the name of the variable, not the token)
"""Environment variable that holds the run token."""

TOKEN_FILE = "ASTRAFLOW_TOKEN_FILE"  # noqa: S105 (the same)
"""Environment variable that names a file with the run token, used without `TOKEN`."""

AUTHORITY = "ASTRAFLOW_AUTHORITY"
"""Environment variable that names the folder of the run's certificate authority."""

METRICS_TOKEN = "ASTRAFLOW_METRICS_TOKEN"  # noqa: S105 (the name of the variable, not the token)
"""Environment variable that holds the token for reading the metrics."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value, for scripts.")]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the recipe, such as stop.steps=50."),
]


def complete_recipe(incomplete: str) -> list[str]:
    """Returns the packaged recipes whose names begin so, for completion in a shell."""
    from astraflow.recipe.files import packaged_recipes

    return [name for name in packaged_recipes() if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Returns the runs below ASTRAFLOW_HOME whose names begin so, for completion in a shell."""
    from astraflow.runtime.folders.run_folders import runs_folder

    return sorted(folder.name for folder in runs_folder().glob("*") if folder.name.startswith(incomplete))


RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a recipe (see: astraflow recipes), or path of a recipe file.", autocompletion=complete_recipe
    ),
]
Address = Annotated[
    str,
    typer.Argument(
        metavar="[ADDRESS]",
        help="HOST:PORT of the dataflow service, or name or folder of an active run; default: the run on this machine.",
    ),
]
Token = Annotated[str, typer.Option(help=f"Run token; prefer --token-file or the variable {TOKEN}.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help=f"File with the run token; default: the variable {TOKEN}, or the file in {TOKEN_FILE}."),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.")]
Metrics = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="Address to serve OpenMetrics on (dataflow.metrics); `off` disables it."),
]
Dataflow = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the run's dataflow service.")]
Directory = Annotated[Path, typer.Option(help="Folder for the persistent state.")]
WeightsKey = Annotated[
    str,
    typer.Option(
        help="Public key that verifies the run's versions: the line in `weights.pub`, or the path of the file."
    ),
]
SigningKeyFile = Annotated[
    Path | None, typer.Option(help="Private key that signs versions: `weights.key` of the run directory.")
]
Authority = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar=AUTHORITY,
        help="Certificate authority of the run: the folder `authority` of its directory.",
    ),
]
Tls = Annotated[
    bool | None,
    typer.Option("--tls/--no-tls", help="Mutual TLS with certificates of the run; default: only beyond loopback."),
]
Advertise = Annotated[
    list[str], typer.Option(metavar="NAME", help="Additional name or address under which clients reach the service.")
]
CaHash = Annotated[
    str,
    typer.Option(
        metavar="sha256:...",
        help="Hash of the run's authority, or a file with it; needed with the run token, part of join tokens.",
    ),
]
CredentialFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder that keeps the credential, to rejoin without a token."),
]
TlsCertificate = Annotated[Path | None, typer.Option(help="Serve TLS with this certificate (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(help="Private key of the certificate (PEM).")]
TlsClientCa = Annotated[
    Path | None, typer.Option(help="Accept only clients with a certificate of this authority (PEM).")
]
TlsCa = Annotated[
    Path | None, typer.Option(help="Connect to services over TLS and verify them with this authority (PEM).")
]
TlsClientCertificate = Annotated[
    Path | None, typer.Option(help="Client certificate for services that require one (PEM).")
]
TlsClientKey = Annotated[Path | None, typer.Option(help="Private key of the client certificate (PEM).")]


def words(options: Mapping[str, object]) -> list[str]:
    """Returns options as words of a command line: none for an option that is None, False or empty, and one for each
    item of a list.

    >>> words({"host": "h", "port": 0, "read-only": True, "fleet": "", "data": ["a", "b"]})
    ['--host', 'h', '--port', '0', '--read-only', '--data', 'a', '--data', 'b']
    """
    words = []
    for name, value in options.items():
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if item is True:
                words.append(f"--{name}")
            elif item is not None and item is not False and item != "":
                words += [f"--{name}", str(item)]
    return words


def check_recipe(name_or_path: str) -> str:
    """Returns the argument, the name or path of a recipe. Raises: InvalidInput for an unknown one.

    A path that does not exist is answered with the nearest file in its folder, not with the packaged recipes.
    """
    from astraflow.recipe.files import find_recipe

    try:
        find_recipe(name_or_path)
    except InvalidInput:
        if not _is_path(name_or_path):
            raise
        raise InvalidInput(
            f"cannot load recipe {name_or_path!r}: {_missing_recipe(Path(name_or_path).expanduser())}",
            code="recipe.file_not_found",
        ) from None
    return name_or_path


def _is_path(name_or_path: str) -> bool:
    """Returns whether this names a file or folder: it has a suffix or a separator, and does not begin as the name of a
    packaged recipe such as `reverse/sort`."""
    from astraflow.recipe.files import PACKAGED

    path = Path(name_or_path).expanduser()
    if len(path.parts) > 1 and not path.is_absolute() and not path.parent.is_dir():
        return not (PACKAGED / path.parts[0]).is_dir()
    return bool(path.suffix) or os.sep in name_or_path or path.is_dir()


def _missing_recipe(path: Path) -> str:
    """Returns why there is no recipe at `path`, and the nearest file."""
    if path.is_dir():
        return "the folder has no recipe.toml; name a file in it"
    if not path.parent.is_dir():
        return f"no such file, and no folder {str(path.parent)!r}; check the path"
    recipes = [file.name for pattern in ("*.toml", "*.json") for file in path.parent.glob(pattern)]
    close = difflib.get_close_matches(path.name, recipes, n=1)
    return f"no such file; did you mean {str(path.with_name(close[0]))!r}?" if close else "no such file; check the path"


def read_token(file: Path | None) -> str:
    """Returns the run token from `file` or from the environment; empty if neither has it.

    Raises: InvalidInput for an unreadable or empty file.
    """
    token, token_file = os.environ.get(TOKEN, ""), os.environ.get(TOKEN_FILE, "")
    if file is None and (token or not token_file):
        return token
    return _read_line(file or Path(token_file), what="token")


def read_ca_hash(hash_or_file: str) -> str:
    """Returns the hash of the authority: `hash_or_file`, or the line in the file of this path. Raises: InvalidInput."""
    return _read_line(Path(hash_or_file), what="CA hash") if os.sep in hash_or_file else hash_or_file


def read_weights_key(key_or_file: str) -> str:
    """Returns the public key of the run: `key_or_file`, or the line in the file of this path. Raises: InvalidInput."""
    return (
        _read_line(Path(key_or_file), what="key") if os.sep in key_or_file else key_or_file
    )  # keys are in base64 without slashes


def _read_line(file: Path, *, what: str) -> str:
    try:
        line = file.read_text().strip()
    except OSError as problem:
        raise InvalidInput(
            f"cannot read the {what} file {str(file)!r}: {problem.strerror}; check the path and its permissions",
            code="cli.unreadable_file",
        ) from None
    except UnicodeDecodeError:
        raise InvalidInput(
            f"cannot read the {what} file {str(file)!r}: it is not a text file; name the file with the run's {what}",
            code="cli.unreadable_file",
        ) from None
    if not line:
        raise InvalidInput(
            f"cannot use the {what} file {str(file)!r}: it is empty; write the run's {what} into it",
            code="cli.empty_file",
        )
    return line
