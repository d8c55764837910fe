"""Definition of a tool: name, kind, strict input and output schemas, and MCP annotations."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
}
"""Keywords that strict schemas do not allow, and their text in a description."""


class ToolModel(BaseModel):
    """Base of tool schemas: frozen, refuses unknown keys, converts no types."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True)


class Kind(Enum):
    """Effect of a tool."""

    READ = "read"
    """Changes nothing."""
    PROPOSE = "propose"
    """Makes a plan; the fleet is unchanged."""
    CAUTION = "caution"
    """Recorded and safe: a hold or an escalation. Removes nothing."""
    MUTATE = "mutate"
    """Changes the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """Annotations of MCP. They enforce nothing; the guard does."""

    title: str
    is_read_only: bool
    is_destructive: bool
    is_idempotent: bool
    is_open_world: bool = False

    @classmethod
    def of(cls, kind: Kind, title: str) -> "Annotations":
        """Annotations of a kind of tool; every new tool gets them by its kind.

        >>> Annotations.of(Kind.MUTATE, "Apply").is_destructive
        True
        """
        return cls(
            title=title,
            is_read_only=kind is Kind.READ,
            is_destructive=kind is Kind.MUTATE,
            is_idempotent=kind in (Kind.READ, Kind.MUTATE),  # a repeated apply returns the first answer
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Definition of one tool."""

    name: str
    kind: Kind
    description: str
    """Text for the model: purpose, result, and when it is refused."""
    input: type[ToolModel]
    output: type[ToolModel]
    title: str

    @property
    def annotations(self) -> Annotations:
        """Annotations of the tool's kind."""
        return Annotations.of(self.kind, self.title)

    def input_schema(self) -> dict[str, Any]:
        """Input JSON schema with bounds and defaults, for MCP and people."""
        return inlined_schema(self.input.model_json_schema())

    def output_schema(self) -> dict[str, Any]:
        """Output JSON schema."""
        return inlined_schema(self.output.model_json_schema(mode="serialization"))

    def strict_schema(self) -> dict[str, Any]:
        """Input schema for strict decoding: all keys required (null for none), bounds in descriptions."""
        return _strict_schema(self.input)


@cache
def _strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    return strict(inlined_schema(model.model_json_schema()))


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Schema for strict decoders; bounds move to descriptions and are validated when a call arrives.

    >>> strict({"type": "integer", "minimum": 1, "description": "How many."})
    {'type': 'integer', 'description': 'How many. (at least 1)'}
    """
    converted = {key: value for key, value in schema.items() if key not in {*_BOUNDS, "title", "default"}}
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    for option in schema.get("anyOf", ()):
        bounds += [text.format(option[key]) for key, text in _BOUNDS.items() if key in option]
    if bounds:
        converted["description"] = f"{schema.get('description', '')} ({', '.join(bounds)})".strip()
    if "properties" in converted:
        converted["properties"] = {name: strict(inner) for name, inner in converted["properties"].items()}
        converted |= {"required": list(converted["properties"]), "additionalProperties": False}
    if "items" in converted:
        converted["items"] = strict(converted["items"])
    if "anyOf" in converted:
        converted["anyOf"] = [strict(option) for option in converted["anyOf"]]
        for option in converted["anyOf"]:
            option.pop("description", None)
    return converted


def tools_hash(tools: Iterable[Tool]) -> str:
    """Hash of everything that a model receives about the tools."""
    definitions = [
        [tool.name, tool.kind.value, tool.description, tool.input_schema(), tool.output_schema()] for tool in tools
    ]
    return hashlib.sha256(json.dumps(definitions, sort_keys=True).encode()).hexdigest()


def inlined_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Schema without references, which some clients do not support; its `$defs` hold their targets."""
    shared = schema.pop("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                rest = {key: inner for key, inner in value.items() if key != "$ref"}
                target = copy.deepcopy(shared[value["$ref"].rpartition("/")[2]])
                return inline({**target, **rest})
            return {key: inline(inner) for key, inner in value.items()}
        return [inline(inner) for inner in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = inline(schema)
    return inlined
