"""Page of the command line, from its commands."""

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main
from typer.core import TyperArgument, TyperGroup

from astraflow.cli.main import app
from docs.generate.page import Page, anchor, first_sentence, table

_SHARED_BY = 10
"""Number of commands from which an option is described once, at the end."""

_VALUES = {bool: "", int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}


def _body() -> Iterator[str]:
    commands = dict(every_command(typer.main.get_command(app), "astraflow"))
    counts = Counter(_key(option) for command in commands.values() for option in command.params)
    shared = {key for key, count in counts.items() if count >= _SHARED_BY}
    rows = ((f"[`{name}`](#{anchor(name)})", first_sentence(command.help or "")) for name, command in commands.items())
    yield from table(("command", "purpose"), rows)
    for name, command in commands.items():
        yield from ("", f"## `{name}`\n", " ".join((command.help or "").split()), "")
        own = [option for option in command.params if _key(option) not in shared]
        yield from table(("parameter", "value", "default", "meaning"), map(_row, own))
        if others := [name_of(option) for option in command.params if _key(option) in shared]:
            yield from ("", f"Also {', '.join(others)}: see [shared options](#shared-options).")
    yield "\n## Shared options\n"
    options = {_key(option): option for command in commands.values() for option in command.params}
    yield from table(
        ("parameter", "value", "default", "meaning"), (_row(options[key]) for key in sorted(shared, key=str))
    )


def every_command(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields the full name and the command of each command below `command`."""
    if not isinstance(command, TyperGroup):
        yield name, command
        return
    for word, inner in command.commands.items():
        yield from every_command(inner, f"{name} {word}")


def _key(option: Any) -> tuple[tuple[str, ...], str]:
    return tuple(option.opts), option.help or ""


def name_of(option: Any) -> str:
    """Returns the name of a parameter as the page writes it."""
    return f"`{option.metavar or option.name.upper()}`" if isinstance(option, TyperArgument) else f"`{option.opts[0]}`"


def _row(option: Any) -> tuple[str, str, str, str]:
    names = [name_of(option)] if isinstance(option, TyperArgument) else [f"`{name}`" for name in _names(option)]
    variable = f" Environment variable: `{option.envvar}`." if getattr(option, "envvar", None) else ""
    return ", ".join(names), _value(option), _default(option), f"{option.help or ''}{variable}"


def _names(option: Any) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _value(option: Any) -> str:
    annotation = option.type_descriptor.annotation
    if isinstance(option, TyperArgument) or getattr(option, "is_flag", False):
        return ""
    text = option.metavar or _words(annotation)
    bounds = [
        f"{words} {bound:g}"
        for words, bound in (("at least", getattr(option, "min", None)), ("at most", getattr(option, "max", None)))
        if bound is not None
    ]
    repeated = "may be repeated" if option.multiple else ""
    return ", ".join(filter(None, [f"{text} {' and '.join(bounds)}".strip(), repeated]))


def _words(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    return _VALUES.get(annotation, "TEXT")


def _default(option: Any) -> str:
    if option.required:
        return "required"
    default = option.default
    if isinstance(default, bool):
        return "on" if default else ""
    if default is None or default in ("", (), []) or callable(default):
        return ""
    return f"`{default.value if isinstance(default, Enum) else default}`"


PAGE = Page(name="commands", body=_body)
