"""TOML and JSON files as plain values: read with error positions, merged in layers, overridden by key."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import ValueOrigin

Values = dict[str, Any]

_POSITION = re.compile(r"(?P<what>.*) \(at (?P<position>line \d+, column \d+|end of document)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ConfigLayer:
    """Values from one source."""

    name: str
    """Name of the file or other source."""
    values: Values


def merge_layers(layers: Sequence[ConfigLayer]) -> Values:
    """Merges the layers; later layers override earlier layers."""
    values: Values = {}
    for layer in layers:
        values = merge_tables(values, layer.values)
    return values


def layer_origin(layers: Sequence[ConfigLayer]) -> ValueOrigin:
    """Returns a function that names the last layer that wrote the value at a path; the last layer for values that no
    layer wrote."""

    def origin(path: Sequence[str]) -> str:
        for length in range(len(path), 0, -1):
            for layer in reversed(layers):
                if _holds(layer.values, path[:length]):
                    return layer.name
        return layers[-1].name

    return origin


def read_values(path: Path) -> Values:
    """Reads a TOML file, or a JSON file with an object, by its suffix. Raises: InvalidInput that names the file."""
    return read_json(path) if path.suffix == ".json" else read_toml(path)


def read_toml(path: Path) -> Values:
    """Reads a TOML file. Raises: InvalidInput that names the file, and line and column of a syntax error."""
    with _reading(path):
        return tomllib.loads(path.read_text(encoding="utf-8"))


def read_json(path: Path) -> Values:
    """Reads a JSON file with an object. Raises: InvalidInput that names the file."""
    with _reading(path):
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it contains no object")
    return values


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns the errors of reading a file into InvalidInput."""
    try:
        yield
    except OSError as problem:
        raise InvalidInput(
            f"cannot read {str(path)!r}: {problem.strerror}; check path and permissions", code="file.unreadable"
        ) from None
    except UnicodeDecodeError as problem:
        raise InvalidInput(
            f"cannot read {str(path)!r}: byte {problem.start} is not UTF-8; save the file as UTF-8", code="file.invalid"
        ) from None
    except (ValueError, RecursionError) as problem:
        cause = "it is nested too deeply" if isinstance(problem, RecursionError) else _explained(str(problem))
        raise InvalidInput(f"cannot read {str(path)!r}: {cause}; correct the file", code="file.invalid") from None


def merge_tables(base: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """Returns `base` with the changes in `over`: tables merge key by key, everything else is replaced.

    A table whose `kind` changes is replaced as a whole: options of one kind are meaningless for another.

    >>> merge_tables({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    >>> merge_tables({"loss": {"kind": "ppo", "clip": 0.2}}, {"loss": {"kind": "m2po"}})
    {'loss': {'kind': 'm2po'}}
    """
    result = dict(base)
    for key, value in over.items():
        base_value = result.get(key)
        if isinstance(value, Mapping) and isinstance(base_value, Mapping) and not _is_other_kind(base_value, value):
            result[key] = merge_tables(base_value, value)
        else:
            result[key] = value
    return result


def parse_override(text: str) -> Values:
    """Parses an override `a.b.c=value` into nested tables. The value is TOML, or otherwise taken as a string.

    >>> parse_override("policies.solver.batch_groups=16")
    {'policies': {'solver': {'batch_groups': 16}}}
    >>> parse_override("flows.train.reward={kind='exact_match'}")
    {'flows': {'train': {'reward': {'kind': 'exact_match'}}}}
    >>> parse_override("summary=a quick look")
    {'summary': 'a quick look'}

    Raises: InvalidInput for another form.
    """
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise InvalidInput(
            f"cannot parse the override {text!r}: it has no key and value; "
            "write key=value, as in policies.solver.batch_groups=16",
            code="toml.invalid_override",
        )
    result: Any = toml_value(value.strip())
    for key in reversed(keys):
        result = {key: result}
    return dict(result)


def toml_value(text: str) -> Any:
    """Parses a TOML value; text that is not TOML is taken as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also a number of thousands of digits
        return text


def toml_text(value: Any) -> str:
    """Formats a value in one line for `toml_value`. Keys with None are omitted, because TOML has no null.

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


def _is_other_kind(base: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    return "kind" in value and value["kind"] != base.get("kind")


def _explained(message: str) -> str:
    match = _POSITION.fullmatch(message)
    if match is None:
        return message
    problem = match["what"]
    return f"{match['position']}: {problem[:1].lower()}{problem[1:]}"
