"""What a tool is: a name, a kind, strict schemas for what goes in and comes out, and hints for whoever lists it."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
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
"""What strict schemas may not say, and how a description says it instead."""


class Typed(BaseModel):
    """Of tools: frozen, unknown keys refused, nothing converted from another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True)


class Kind(Enum):
    """What a call may do."""

    READ = "read"
    """Nothing changes."""
    PROPOSE = "propose"
    """A plan is made; the fleet is as before."""
    CAUTION = "caution"
    """Written down, and safe: a hold, a word to people. It takes nothing away."""
    MUTATE = "mutate"
    """The fleet is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """Hints as MCP has them. They enforce nothing: the guard does."""

    title: str
    is_read_only: bool
    is_destructive: bool
    is_idempotent: bool
    is_open_world: bool = False

    @classmethod
    def of(cls, kind: Kind, title: str) -> "Annotations":
        """What a kind of tool says of itself: one that is new is not less careful by being forgotten.

        >>> Annotations.of(Kind.MUTATE, "Apply").is_destructive
        True
        """
        return cls(
            title=title,
            is_read_only=kind is Kind.READ,
            is_destructive=kind is Kind.MUTATE,
            is_idempotent=kind in (Kind.READ, Kind.MUTATE),  # a second apply under a key is the first one's answer
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One verb."""

    name: str
    kind: Kind
    description: str
    """For the model: what it is for, what it returns, when it is refused."""
    input: type[Typed]
    output: type[Typed]
    title: str

    @property
    def annotations(self) -> Annotations:
        """Of its kind."""
        return Annotations.of(self.kind, self.title)

    def input_schema(self) -> dict[str, Any]:
        """JSON schema with bounds and defaults, for MCP and people."""
        return _inlined(self.input.model_json_schema())

    def output_schema(self) -> dict[str, Any]:
        """JSON schema of what it returns."""
        return _inlined(self.output.model_json_schema(mode="serialization"))

    def strict_schema(self) -> dict[str, Any]:
        """The input schema as strict decoding wants it: all keys required (null for none), bounds in descriptions."""
        return strict(self.input_schema())


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that any strict decoder takes; what it cannot say stands in descriptions, and is checked on arrival.

    >>> strict({"type": "integer", "minimum": 1, "description": "How many."})
    {'type': 'integer', 'description': 'How many. (at least 1)'}
    """
    made = {key: value for key, value in schema.items() if key not in {*_BOUNDS, "title", "default"}}
    said = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    for option in schema.get("anyOf", ()):
        said += [text.format(option[key]) for key, text in _BOUNDS.items() if key in option]
    if said:
        made["description"] = f"{schema.get('description', '')} ({', '.join(said)})".strip()
    if "properties" in made:
        made["properties"] = {name: strict(inner) for name, inner in made["properties"].items()}
        made |= {"required": list(made["properties"]), "additionalProperties": False}
    if "items" in made:
        made["items"] = strict(made["items"])
    if "anyOf" in made:
        made["anyOf"] = [strict(option) for option in made["anyOf"]]
        for option in made["anyOf"]:
            option.pop("description", None)
    return made


def tools_hash(tools: Iterable[Tool]) -> str:
    """Of all that a model is told about them: it changes when anything of it does."""
    told = [[tool.name, tool.kind.value, tool.description, tool.input_schema(), tool.output_schema()] for tool in tools]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Without references: some readers know none."""
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
