"""Validated reading of the fields of requests. A field with the value null counts as absent."""

from collections.abc import Callable, Iterator
from typing import Any

from astraflow.agents.dialects.dialect import InvalidCall, Json, to_json
from astraflow.models.tokenizers import ToolSchema

_MAX_TOKENS = 2**31 - 1
_MAX_STOPS = 64


def text(body: Json, key: str, *, default: str = "") -> str:
    """Returns a string. Raises: InvalidCall, as every function of this module."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise _wrong(key, "a string")
    return value


def required_text(body: Json, key: str) -> str:
    """Returns a string that must not be empty."""
    value = text(body, key)
    if not value:
        raise _wrong(key, "a string that is not empty")
    return value


def flag(body: Json, key: str, *, default: bool = False) -> bool:
    """Returns a boolean."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(key, "true or false")
    return value


def count(body: Json, key: str, *, least: int = 1) -> int | None:
    """Returns a whole number of at least `least`, or None. A number such as 16.0 counts."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_TOKENS:
        raise _wrong(key, f"a whole number between {least} and {_MAX_TOKENS}")
    return value


def number(body: Json, key: str, *, most: float) -> float | None:
    """Returns a number between 0 and `most`, or None."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, "a number")
    if not 0 <= value <= most:
        raise _wrong(key, f"a number between 0 and {most:g}")
    return float(value)


def strings(body: Json, key: str) -> tuple[str, ...]:
    """Returns the strings of a field that is a string or a list of strings."""
    value = body.get(key)
    if value is None:
        return ()
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) and item for item in values):
        raise _wrong(key, "a string or a list of strings, none of which is empty")
    if len(values) > _MAX_STOPS:
        raise _wrong(key, f"a list of at most {_MAX_STOPS} strings")
    return tuple(values)


def includes_usage(body: Json) -> bool:
    """Returns whether the stream of a reply ends with its usage."""
    return flag(mapping(body, "stream_options") or {}, "include_usage")


def mapping(body: Json, key: str) -> Json | None:
    """Returns an object, or None."""
    value = body.get(key)
    if value is not None and not isinstance(value, dict):
        raise _wrong(key, "an object")
    return value


def objects(body: Json, key: str) -> Iterator[tuple[str, Json]]:
    """Yields name, such as `messages[0]`, and value of each object in a list."""
    value = body.get(key)
    if value is None:
        return
    if not isinstance(value, list):
        raise _wrong(key, "a list")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise _wrong(f"{key}[{index}]", "an object")
        yield f"{key}[{index}]", item


def joined_text(content: Any, where: str, *, kinds: tuple[str, ...], separator: str) -> str:
    """Returns the text of a field that is null, a string, or a list of text parts.

    kinds: values of `type` that text parts may have. Raises: InvalidCall for images, audio, files and other parts.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, "a string or a list of parts")
    return separator.join(_part_text(part, f"{where}[{index}]", kinds) for index, part in enumerate(content))


def function_tool(
    tool: Json, function: Json | None, where: str, *, kind: str = "function", schema_key: str = "parameters"
) -> ToolSchema:
    """Returns the schema of a tool that the model may call. function: the part with its name, text and parameters."""
    actual = text(tool, "type", default=kind)
    if actual != kind or function is None:
        remedy = "a function" if kind == "function" else f"a tool with `{schema_key}`"
        raise InvalidCall(
            f"cannot use {where}: tools of type {actual[:40]!r} are not supported; define {remedy}",
            code="agent.unsupported_tool",
        )
    described: Json = {"name": required_text(function, "name")}
    if description := text(function, "description"):
        described["description"] = description
    parameters = mapping(function, schema_key)
    described["parameters"] = {"type": "object", "properties": {}} if parameters is None else parameters
    if function.get("strict") is not None:
        described["strict"] = flag(function, "strict")
    return {"type": "function", "function": described}


def tool_choice(choice: Any, named: Callable[[Json], Json | None], tools: tuple[ToolSchema, ...]) -> str:
    """Returns the choice of tools in OpenAI's words: `auto`, `none`, `required` or the name of a tool.

    named: returns the part of an object that has the name of a tool; None for another object.
    """
    if choice is None:
        return "auto"
    if choice in ("auto", "none", "required"):
        return str(choice)
    function = named(choice) if isinstance(choice, dict) else None
    if function is None:
        raise InvalidCall(
            "cannot use `tool_choice`: it is not 'auto', 'none', 'required' or a function; use one of these",
            code="agent.unsupported_tool_choice",
        )
    return known_tool(required_text(function, "name"), tools)


def format_schema(wanted: Json, described: Json, where: str) -> str:
    """Returns the JSON schema of an answer in OpenAI's words; empty for text. described: the part with the schema."""
    kind = text(wanted, "type", default="text")
    if kind == "text":
        return ""
    if kind == "json_object":
        return schema_text({"type": "object"})
    schema = mapping(described, "schema")
    if kind != "json_schema" or schema is None:
        raise InvalidCall(
            f"cannot use `{where}`: type {kind[:40]!r} is unknown or has no schema; use 'text', 'json_object', or "
            "'json_schema' with a `schema`",
            code="agent.unsupported_format",
        )
    return schema_text(schema)


def schema_text(schema: Json | None) -> str:
    """Returns a JSON schema as JSON; empty for None."""
    return "" if schema is None else to_json(schema).decode()


def known_tool(name: str, tools: tuple[ToolSchema, ...]) -> str:
    """Returns the name of a tool that the model must call. Raises: InvalidCall when the request does not define it."""
    if name not in {tool["function"]["name"] for tool in tools}:
        raise InvalidCall(
            f"cannot require a call of the tool {name[:80]!r}: the request does not define it; add it to `tools`",
            code="agent.unknown_tool",
        )
    return name


def refuse_fields(body: Json, unsupported: dict[str, str]) -> None:
    """Raises: InvalidCall when a field is set that would change the reply and is not supported.

    unsupported: by name, what to do instead.
    """
    for name, remedy in unsupported.items():
        if body.get(name):
            raise InvalidCall(
                f"cannot use the field {name!r}: it is not supported; {remedy}", code="agent.unsupported_field"
            )


def _part_text(part: Any, where: str, kinds: tuple[str, ...]) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise _wrong(where, "a part with a `type`")
    kind = part.get("type")
    if kind not in kinds:
        raise InvalidCall(
            f"cannot use {where}: parts of type {str(kind)[:40]!r} are not supported; send text",
            code="agent.unsupported_content",
        )
    return text(part, "refusal" if kind == "refusal" else "text")


def _wrong(key: str, expected: str) -> InvalidCall:
    return InvalidCall(f"cannot use the field {key!r}: it is not {expected}; correct it", code="agent.invalid_field")
