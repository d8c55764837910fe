"""`astraflow environments`: installs, lists and removes packages with environments."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from astraflow.cli.options import Json

if TYPE_CHECKING:
    from astraflow.cli.output import Table
    from astraflow.environments.foreign.installation import InstalledEnvironment

environments = typer.Typer(
    name="environments",
    help="Install, list and remove environments of other projects, each kind in a virtual environment of its own.",
    no_args_is_help=True,
    add_completion=False,
)


@environments.command()
def install(
    kind: Annotated[str, typer.Argument(metavar="KIND[==VERSION]", help="Kind, such as verifiers.")],
    package: Annotated[
        list[str],
        typer.Option(
            metavar="REQUIREMENT|FOLDER", help="Further package for pip, which brings environments; may be repeated."
        ),
    ] = [],  # noqa: B006 (typer copies it)
    name: Annotated[str, typer.Option(help="Name of the virtual environment; default: the kind.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Install without asking; for scripts.")] = False,
) -> None:
    """Install a kind and the packages of its environments; replaces what was installed under the name."""
    from astraflow.cli.engines.environments import require_consent
    from astraflow.environments.foreign.installation import environments_folder
    from astraflow.environments.foreign.installation import install as install_environment
    from astraflow.environments.foreign.releases import release_of

    kind, _, version = kind.partition("==")
    release = release_of(kind)
    what = " and ".join([f"{release.distribution} {version or release.version} ({release.licence})", *package])
    typer.echo(
        f"{what}, about {release.size_bytes / 1e9:.1f} GB, in {environments_folder() / (name or kind)}; its code runs "
        "with the rights of this user"
    )
    require_consent(f"astraflow environments install {kind}", has_consent=yes)
    installed = install_environment(
        release, name=name or kind, version=version, packages=package, progress=lambda line: typer.echo(line)
    )
    typer.echo(f"installed {installed.name}: {len(installed.frozen)} packages")


@environments.command("list")
def list_environments(as_json: Json = False) -> None:
    """List what is installed, with releases and further packages."""
    from astraflow.cli.output import show
    from astraflow.environments.foreign.installation import installed_environments

    installed = installed_environments()
    rows = [{"name": environment.name, **environment.facts()} for environment in installed]
    show(rows, lambda _: _table(installed), as_json=as_json)


@environments.command()
def remove(name: Annotated[str, typer.Argument(help="Name of the virtual environment.")]) -> None:
    """Remove a virtual environment."""
    from astraflow.environments.foreign.installation import remove as remove_environment

    remove_environment(name)
    typer.echo(f"removed {name}")


def _table(installed: "Sequence[InstalledEnvironment]") -> "Table | Text":
    from astraflow.cli.output import Table

    if not installed:
        return Text("no environments are installed: astraflow environments install KIND")
    table = Table("environment", "kind", "release", "further packages")
    for environment in installed:
        release = environment.version if environment.is_pinned else f"{environment.version} (not tested)"
        table.add(environment.name, environment.kind, release, ", ".join(environment.packages))
    return table
