"""API reference page: parameters, answers and a curl command of each operation, from the OpenAPI document."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value of a request."""

    name: str
    kind: str
    where: str
    """`path`, `query`, `header` or `body`."""
    is_required: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    id: str
    method: str
    path: str
    summary: str
    text: str
    role: str
    fields: tuple[Field, ...]
    curl: str
    example: str
    """Example of the answer, as text."""
    responses: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiView:
    """All operations, grouped by tag."""

    description: str
    groups: tuple[tuple[str, tuple[Operation, ...]], ...]


def api_view(document: Mapping[str, Any]) -> ApiView:
    """Builds the view from the OpenAPI document."""
    groups: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            group = groups.setdefault(operation["tags"][0], [])
            group.append(_operation(document, path, method, operation))
    return ApiView(
        description=document["info"]["description"],
        groups=tuple((name.capitalize(), tuple(operations)) for name, operations in groups.items()),
    )


def _operation(document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]) -> Operation:
    bodies = _bodies(document, operation)
    summary, *paragraphs, _role = operation["description"].split("\n\n")
    return Operation(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=summary.replace("\n", " "),
        text=" ".join(paragraphs).replace("\n", " "),
        role=operation["x-role"],
        fields=(*_parameters(operation), *(field for body in bodies for field in _fields(body))),
        curl=_curl(method.upper(), path, operation, bodies),
        example=_answer(operation),
        responses=tuple((status, answer["description"]) for status, answer in operation["responses"].items()),
    )


def _parameters(operation: Mapping[str, Any]) -> list[Field]:
    return [
        Field(
            name=parameter["name"],
            kind=_kind(parameter["schema"]),
            where=parameter["in"],
            is_required=parameter["required"],
            text=parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", [])
    ]


def _bodies(document: Mapping[str, Any], operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the schemas that a request body may have; a request uses one of them."""
    if "requestBody" not in operation:
        return []
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    schemas = document["components"]["schemas"]
    return [schemas[reference["$ref"].rpartition("/")[2]] for reference in schema.get("anyOf", [schema])]


def _fields(body: Mapping[str, Any]) -> list[Field]:
    return [
        Field(
            name=name,
            kind=_kind(schema),
            where="body",
            is_required=name in body.get("required", []),
            text=schema.get("description", ""),
        )
        for name, schema in body["properties"].items()
    ]


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(repr(value) if value == "" else str(value) for value in schema["enum"])
    bounds = " to ".join(f"{schema[name]:g}" for name in ("minimum", "maximum") if name in schema)
    return f"{schema.get('type', 'anything')}{f', {bounds}' if bounds else ''}"


def _answer(operation: Mapping[str, Any]) -> str:
    """Returns the example of a successful answer, as text."""
    contents = [answer["content"] for status, answer in operation["responses"].items() if status.startswith("2")]
    for kind, content in (item for by_kind in contents for item in by_kind.items()):
        example = content["example"]
        return json.dumps(example, indent=2, ensure_ascii=False) if kind == "application/json" else str(example)
    return ""


def _curl(method: str, path: str, operation: Mapping[str, Any], bodies: Sequence[Mapping[str, Any]]) -> str:
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", str(_example(parameter)))
    parts = ["curl", *([] if method == "GET" else ["-X", method]), '-H "Authorization: Bearer $TOKEN"']
    if any(parameter["in"] == "header" for parameter in operation.get("parameters", [])):
        parts.append('-H "Idempotency-Key: $(uuidgen)"')
    if bodies:
        parts.append("-H 'Content-Type: application/json'")
        parts.append(f"-d '{json.dumps(bodies[0]['examples'][0])}'")
    return " ".join([*parts, f"$PAGE{path}"])


def _example(parameter: Mapping[str, Any]) -> Any:
    examples = parameter.get("examples") or parameter["schema"].get("examples") or [parameter["example"]]
    return examples[0]
