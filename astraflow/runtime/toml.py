"""TOML files as plain values: read with errors that point at the place, merged in layers, overridden key by key."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import Origin

Values = dict[str, Any]

_PLACE = re.compile(r"(?P<what>.*) \(at (?P<place>line \d+, column \d+|end of document)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Layer:
    """Values that were written together."""

    name: str
    """Of the file, or of what else they come from."""
    values: Values


def stacked(layers: Sequence[Layer]) -> Values:
    """What the layers say together; later ones state differences."""
    values: Values = {}
    for layer in layers:
        values = merged(values, layer.values)
    return values


def origin_in(layers: Sequence[Layer]) -> Origin:
    """Tells which layer wrote the value at a path of keys last; the last layer for what is written nowhere."""

    def origin(path: Sequence[str]) -> str:
        for length in range(len(path), 0, -1):
            for layer in reversed(layers):
                if _holds(layer.values, path[:length]):
                    return layer.name
        return layers[-1].name

    return origin


def read_toml(path: Path) -> Values:
    """The values of a TOML file. Raises: InvalidInput that names the file, and the line and column of a mistake."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as problem:
        raise InvalidInput(f"{path}, {_explained(str(problem))}") from None
    except UnicodeDecodeError as problem:
        raise InvalidInput(f"{path} is not text in UTF-8 (byte {problem.start}): save it as UTF-8") from None
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be read: {problem.strerror}") from None


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """`base` with the differences that `over` states: tables merge key by key, everything else is replaced.

    A table whose `kind` changes is replaced whole: the options of one kind mean nothing to another.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    >>> merged({"loss": {"kind": "ppo", "clip": 0.2}}, {"loss": {"kind": "m2po"}})
    {'loss': {'kind': 'm2po'}}
    """
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping) and not _is_other_kind(known, value):
            result[key] = merged(known, value)
        else:
            result[key] = value
    return result


def assignment(text: str) -> Values:
    """One override `a.b.c=value` as nested tables. The value is TOML; what is not TOML is taken as a string.

    >>> assignment("policies.solver.batch_groups=16")
    {'policies': {'solver': {'batch_groups': 16}}}
    >>> assignment("flows.train.reward={kind='exact_match'}")
    {'flows': {'train': {'reward': {'kind': 'exact_match'}}}}
    >>> assignment("summary=a quick look")
    {'summary': 'a quick look'}

    Raises: InvalidInput when it is not of that form.
    """
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise InvalidInput(f"{text!r} is not an override: write key=value, as in policies.solver.batch_groups=16")
    result: Any = toml_value(value.strip())
    for key in reversed(keys):
        result = {key: result}
    return dict(result)


def toml_value(text: str) -> Any:
    """A value as it stands behind an equals sign; what is not TOML is taken as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def toml_text(value: Any) -> str:
    """A value in one line, as `toml_value` reads it back. What is None in a table is left out: TOML has no such thing.

    >>> toml_text({"kind": "ppo", "clip": 0.2, "names": ["a", 'b"c'], "is_on": True, "rest": None})
    '{kind = "ppo", clip = 0.2, names = ["a", "b\\\\"c"], is_on = true}'
    """
    match value:
        case bool():
            return str(value).lower()
        case dict():
            parts = (f"{_toml_key(key)} = {toml_text(inner)}" for key, inner in value.items() if inner is not None)
            return "{" + ", ".join(parts) + "}"
        case list() | tuple():
            return "[" + ", ".join(toml_text(inner) for inner in value) + "]"
        case str():
            return json.dumps(value).replace("\x7f", "\\u007f")
        case _:
            return repr(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _holds(values: Any, path: Sequence[str]) -> bool:
    for key in path:
        if isinstance(values, list) and key.isdecimal() and int(key) < len(values):
            values = values[int(key)]
        elif isinstance(values, Mapping) and key in values:
            values = values[key]
        else:
            return False
    return True


def _is_other_kind(known: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    return "kind" in value and value["kind"] != known.get("kind")


def _explained(message: str) -> str:
    found = _PLACE.fullmatch(message)
    if found is None:
        return f"not valid TOML: {message}"
    what = found["what"]
    return f"{found['place']}: {what[:1].lower()}{what[1:]}"
