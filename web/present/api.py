"""The document of the API as a page: what each address takes and answers, and how to call it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value that is sent or answered."""

    name: str
    kind: str
    where: str
    """`path`, `query`, `header` or `body`."""
    is_needed: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one address."""

    id: str
    method: str
    path: str
    summary: str
    text: str
    role: str
    fields: tuple[Field, ...]
    curl: str
    example: str
    """Of the answer."""
    answers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiView:
    """All of it, by subject."""

    description: str
    groups: tuple[tuple[str, tuple[Operation, ...]], ...]


def api_view(document: Mapping[str, Any]) -> ApiView:
    """From the OpenAPI document."""
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
    summary, _, text = operation["description"].partition("\n\n")
    return Operation(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=summary.replace("\n", " "),
        text=text.partition("Needs role")[0].strip().replace("\n", " "),
        role=operation["x-role"],
        fields=(*_parameters(operation), *(field for body in bodies for field in _fields(body))),
        curl=_curl(method.upper(), path, operation, bodies),
        example=_answer(operation),
        answers=tuple((status, answer["description"]) for status, answer in operation["responses"].items()),
    )


def _parameters(operation: Mapping[str, Any]) -> list[Field]:
    return [
        Field(
            name=one["name"],
            kind=_kind(one["schema"]),
            where=one["in"],
            is_needed=one["required"],
            text=one.get("description", ""),
        )
        for one in operation.get("parameters", [])
    ]


def _bodies(document: Mapping[str, Any], operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Schemas of what may be sent: one of them."""
    if "requestBody" not in operation:
        return []
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    known = document["components"]["schemas"]
    return [known[one["$ref"].rpartition("/")[2]] for one in schema.get("anyOf", [schema])]


def _fields(body: Mapping[str, Any]) -> list[Field]:
    return [
        Field(
            name=name,
            kind=_kind(schema),
            where="body",
            is_needed=name in body.get("required", []),
            text=schema.get("description", ""),
        )
        for name, schema in body["properties"].items()
    ]


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(repr(one) if one == "" else str(one) for one in schema["enum"])
    bounds = " to ".join(f"{schema[name]:g}" for name in ("minimum", "maximum") if name in schema)
    return f"{schema.get('type', 'anything')}{f', {bounds}' if bounds else ''}"


def _answer(operation: Mapping[str, Any]) -> str:
    """What is answered when all is well, as text."""
    contents = [one["content"] for status, one in operation["responses"].items() if status.startswith("2")]
    for kind, content in (each for found in contents for each in found.items()):
        found = content["example"]
        return json.dumps(found, indent=2, ensure_ascii=False) if kind == "application/json" else str(found)
    return ""


def _curl(method: str, path: str, operation: Mapping[str, Any], bodies: Sequence[Mapping[str, Any]]) -> str:
    for one in operation.get("parameters", []):
        if one["in"] == "path":
            path = path.replace(f"{{{one['name']}}}", str(_example(one)))
    parts = ["curl", *([] if method == "GET" else ["-X", method]), '-H "Authorization: Bearer $TOKEN"']
    if any(one["in"] == "header" for one in operation.get("parameters", [])):
        parts.append('-H "Idempotency-Key: $(uuidgen)"')
    if bodies:
        parts.append("-H 'Content-Type: application/json'")
        parts.append(f"-d '{json.dumps(bodies[0]['examples'][0])}'")
    return " ".join([*parts, f"$PAGE{path}"])


def _example(parameter: Mapping[str, Any]) -> Any:
    found = parameter.get("examples") or parameter["schema"].get("examples") or [parameter["example"]]
    return found[0]
