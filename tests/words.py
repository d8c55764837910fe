"""Command lines of `astraflow` in files and documents, parsed by the command line itself."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import typer.main
from typer.core import TyperGroup

from astraflow.cli.main import app

PROGRAM = "astraflow"


@cache
def program() -> Any:
    """Returns the command line. Building it takes 80 ms."""
    return typer.main.get_command(app)


def command_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Returns the command that `words` (without the program) name, and the remaining words. Raises: ValueError."""
    command = program()
    rest = list(words)
    while isinstance(command, TyperGroup):
        while len(rest) > 2 and rest[0].startswith("--") and rest[0] in options_of(command):
            rest = rest[2:]  # an option of the program with its value
        if not rest or rest[0] not in command.commands:
            if command.invoke_without_command and (not rest or rest[0].startswith("-")):
                break
            raise ValueError(f"{' '.join(words)}: no command of {sorted(command.commands)}")
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def parsed(words: Sequence[str]) -> typer.Context:
    """Returns the parsed context of the command. Raises: typer's own errors, for invalid parameters."""
    command, rest = command_of(words)
    context: typer.Context = command.make_context(PROGRAM, rest)
    return context


def options_of(command: Any) -> set[str]:
    """Returns the options of a command, as written."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
