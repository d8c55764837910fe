"""A recipe as TOML text that a user edits: the text, the overrides that an edited text makes, and lines of settings."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.launching import FormProblem
from astraflow.recipe.files import find_recipe, layers_of
from astraflow.runtime.config.toml import Values, merge_layers, merge_tables, parse_override, toml_text

MAX_CHARACTERS = 64 * 1024
"""Longest text. Characters: a run gets its overrides as arguments, of which the system accepts 128 KiB each."""
MAX_OVERRIDES = 200
MAX_LEVELS = 32
"""Levels of tables in a text."""

_LINE = re.compile(r"\(at line (\d+)")
_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[\[?\s*([A-Za-z0-9_.\"' -]+?)\s*\]\]?\s*(?:#.*)?$")
_SETTING = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")


def recipe_text(location: str, overrides: Sequence[str] = ()) -> str:
    """Returns a recipe with overrides as TOML: what its files and those that they extend set, without defaults.

    Raises: InvalidInput.
    """
    values = {key: value for key, value in _recipe_values(location).items() if key != "card"}
    for override in overrides:
        values = merge_tables(values, parse_override(override))
    return "\n".join(_document(values)).strip() + "\n"


def overrides_of(text: str, location: str) -> list[str]:
    """Returns the settings in which a text differs from a recipe, as `--set` arguments. A setting that the text lacks
    keeps the recipe's value.

    Raises: InvalidInput for a text that is too long or no TOML; `problem_line` finds the line in the message.
    """
    if len(text) > MAX_CHARACTERS:
        raise _invalid(f"it has {len(text)} characters, more than {MAX_CHARACTERS}; shorten it")
    try:
        values = tomllib.loads(text)
        values.pop("extends", None)
        overrides = [
            f"{'.'.join(path)}={toml_text(value)}" for path, value in _changes(_recipe_values(location), values)
        ]
    except RecursionError:
        raise _invalid(f"it has more than {MAX_LEVELS} levels of tables; use fewer") from None
    except ValueError as problem:
        raise _invalid(f"{problem}; correct the text") from None
    if len(overrides) > MAX_OVERRIDES:
        raise _invalid(f"it changes {len(overrides)} settings, more than {MAX_OVERRIDES}; put them into a recipe file")
    return overrides


def text_problem(problem: InvalidInput) -> FormProblem:
    """Returns the problem of a text that cannot be read, with its line; the first for one of the whole text."""
    match = _LINE.search(str(problem))
    return FormProblem(key="", message=str(problem), line=int(match[1]) if match else 1)


def setting_lines(text: str) -> dict[str, int]:
    """Returns the line of each table and setting of a text by its key; the first line is 1.

    >>> setting_lines('seed = 1\\n[flows.train]\\ngroup_size = 8')
    {'seed': 1, 'flows.train': 2, 'flows.train.group_size': 3}
    """
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _plain(header[1])
            lines.setdefault(table, number)
        elif setting := _SETTING.match(line):
            lines.setdefault(f"{table}.{_plain(setting[1])}" if table else _plain(setting[1]), number)
    return lines


def line_of(key: str, lines: Mapping[str, int]) -> int | None:
    """Returns the line of a setting, or of the nearest table around it; None for one that the text lacks."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return lines.get(key)


def _recipe_values(location: str) -> Values:
    return merge_layers(layers_of(find_recipe(location)))


def _changes(
    before: Any, after: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the settings in which two tables differ, with their new values."""
    if len(path) > MAX_LEVELS:
        raise RecursionError
    for key, value in after.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"the key {key[:80]!r} has other characters than letters, digits, dashes and underscores")
        old = before.get(key) if isinstance(before, Mapping) else None
        if isinstance(value, Mapping) and value and not _has_other_kind(old, value):
            yield from _changes(old, value, (*path, key))
        elif value != old or isinstance(value, bool) != isinstance(old, bool):
            yield (*path, key), value


def _has_other_kind(before: Any, after: Mapping[str, Any]) -> bool:
    """Returns whether a table is a plugin of another kind, whose options replace all earlier ones."""
    return "kind" in after and (not isinstance(before, Mapping) or before.get("kind") != after["kind"])


def _document(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the lines of a table: its settings first, then the tables in it."""
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping) and value}
    settings = {key: value for key, value in values.items() if key not in tables and value is not None}
    if path and (settings or not tables):
        yield ""
        yield f"[{'.'.join(path)}]"
    for key, value in settings.items():
        yield from _setting(key, value)
    for key, table in tables.items():
        yield from _document(table, (*path, key))


def _setting(key: str, value: Any) -> Iterator[str]:
    """Yields the lines of a setting: one for each entry of a list of tables."""
    if isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
        yield f"{key} = ["
        yield from (f"    {toml_text(entry)}," for entry in value)
        yield "]"
    else:
        yield f"{key} = {toml_text(value)}"


def _plain(key: str) -> str:
    """Returns a key without the spaces and quotes around its parts."""
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _invalid(cause: str) -> InvalidInput:
    return InvalidInput(f"cannot read the text of the recipe: {cause}", code="recipe.invalid_text")
