"""Command lines of `astraflow`, as files and documents have them, read by the command line itself."""

from collections.abc import Sequence
from typing import Any

import typer.main
from typer.core import TyperGroup

from astraflow.cli.main import app

PROGRAM = "astraflow"


def found(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that `words` (without the program) name, and what follows. Raises: ValueError when there is none."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while isinstance(command, TyperGroup):
        if not rest or rest[0] not in command.commands:
            raise ValueError(f"{' '.join(words)}: no command of {sorted(command.commands)}")
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def parsed(words: Sequence[str]) -> typer.Context:
    """What the command would be run with. Raises: typer's own errors, for what it does not take."""
    command, rest = found(words)
    context: typer.Context = command.make_context(PROGRAM, rest)
    return context


def options_of(command: Any) -> set[str]:
    """Of a command, as they are written."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
