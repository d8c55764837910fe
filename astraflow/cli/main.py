"""The `astraflow` command."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from astraflow.cli.checks.commands import calibrate, check, doctor
from astraflow.cli.engines.commands import engines
from astraflow.cli.environments.commands import environments
from astraflow.cli.evaluation.commands import evaluate
from astraflow.cli.fleet.commands import fleet
from astraflow.cli.inspection.commands import plugins, report, set_aside, track, view
from astraflow.cli.inspection.trajectories_command import trajectories
from astraflow.cli.maintainer.commands import maintainer, mcp
from astraflow.cli.models.commands import chat, export, fetch
from astraflow.cli.page.commands import audit, login_link, runs, ui
from astraflow.cli.recipes.commands import new, recipes
from astraflow.cli.running.commands import demo, fork, prepare, run, sweep
from astraflow.cli.services.commands import join, serve
from astraflow.cli.services.health import health
from astraflow.cli.services.tokens import keys, token
from astraflow.cli.simulate import simulate
from astraflow.contract.errors import AstraFlowError, DeadlineExceeded

_WORDS = "astraflow.words"
"""Key of the words of the command line in the context."""


class _Commands(TyperGroup):
    """All commands. An option of `astraflow` itself that follows the command is answered with its place."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keeps the words for the message of `invoke`."""
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names in the order of `PANELS`."""
        return [_name(command) for commands in PANELS.values() for command in commands]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as problem:  # raised again; typer has the class of this error in a private module
            name = getattr(problem, "option_name", None)
            if name in ("--plugin", "--verbose"):
                command = shlex.join(("astraflow", *_own_options_first(ctx.meta[_WORDS])))
                problem.message = f"{name} stands before the command: {command}"  # type: ignore[attr-defined]  # the private class has it
                problem.possibilities = None  # type: ignore[attr-defined]  # the same
            raise


def _own_options_first(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line with `--plugin` and `--verbose` before the command.

    >>> _own_options_first(["run", "recipe.toml", "--plugin", "reward.py"])
    ['--plugin', 'reward.py', 'run', 'recipe.toml']
    """
    own, rest, remaining = list[str](), list[str](), iter(words)
    for word in remaining:
        if word == "--plugin":
            own += [word, next(remaining, "FILE")]
        elif word == "--verbose" or word.startswith("--plugin="):
            own.append(word)
        else:
            rest.append(word)
    return own + rest


app = typer.Typer(
    cls=_Commands,
    help="Reinforcement learning for LLM agents: rollout nodes, dataflow and trainers as services.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # expected errors print one line (below); defects print a traceback
)

PANELS: Mapping[str, Sequence[Callable[..., None] | typer.Typer]] = {
    "Start": (demo, new, recipes, run, fork, sweep, doctor),
    "Watch": (ui, report, view, chat, login_link, track, trajectories, set_aside),
    "Control": (runs, join, token, plugins, fleet, maintainer),
    "Evaluate and check": (evaluate, check, calibrate, simulate),
    "Models and engines": (fetch, prepare, export, engines, environments),
    "Services": (serve, keys, health, audit, mcp),
}
"""Commands by panel of the help."""


def _name(command: Callable[..., None] | typer.Typer) -> str:
    return str(command.info.name if isinstance(command, typer.Typer) else command.__name__).replace("_", "-")


for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(rich_help_panel=panel)(command)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"astraflow {version('astraflow')}")
        raise typer.Exit


@app.callback()
def set_options(
    verbose: Annotated[bool, typer.Option("--verbose", help="Print errors with their traceback.")] = False,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    plugin: Annotated[
        list[str],
        typer.Option(
            "--plugin",
            metavar="FILE|MODULE",
            help="Python file or module that registers your plugins, here and in started processes; may be repeated.",
        ),
    ] = [],  # noqa: B006 (typer copies it)
) -> None:
    """Reinforcement learning for LLM agents: rollout nodes, dataflow and trainers as services."""
    if verbose:
        os.environ["ASTRAFLOW_VERBOSE"] = "1"
    if plugin:
        from astraflow.runtime.plugins import PLUGINS_VARIABLE, import_plugins

        targets = [str(Path(target).resolve()) if target.endswith(".py") else target for target in plugin]
        for target in targets:
            import_plugins(target)
        earlier = os.environ.get(PLUGINS_VARIABLE, "")
        os.environ[PLUGINS_VARIABLE] = os.pathsep.join([*targets, *([earlier] if earlier else [])])


def main() -> None:
    """Runs the command line. Expected errors end with one line and an exit code other than 0."""
    # gRPC reads this variable when it is imported. Its fork handlers sometimes crash children of an event loop between
    # fork and exec
    # (signal 11, in one of twenty starts); children here only exec, so they need no handlers.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    # This hides gRPC's own messages (a port in use, a fork with threads); errors are reported below.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app()
    except AstraFlowError as problem:
        fail(problem)
    except TimeoutError:  # an OSError without a file
        fail(
            DeadlineExceeded(
                "cannot finish: a step took too long; the machine may be busy: try again, and see "
                "where with astraflow --verbose COMMAND",
                code="cli.timed_out",
            )
        )
    except OSError as problem:
        from astraflow.cli.run_directory import storage_error

        fail(storage_error(problem, problem.filename or "a file"))


def fail(problem: AstraFlowError) -> None:
    """Exits after printing one line with the message and the code of `problem`."""
    from astraflow.runtime.service import exit_code, print_error

    print_error(problem)
    sys.exit(exit_code(problem))


if __name__ == "__main__":
    main()
