"""Page of the REST API, from its OpenAPI document."""

from collections.abc import Iterator, Mapping
from typing import Any

from docs.generate.page import Page, anchor, table
from web.api_docs.routes import document
from web.app import ROUTES
from web.rest.common import PREFIX

Schema = Mapping[str, Any]


def _body() -> Iterator[str]:
    described = document(ROUTES)
    operations = [
        (method.upper(), path.removeprefix(PREFIX), operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    for tag in dict.fromkeys(operation["tags"][0] for _, _, operation in operations):
        yield f"\n## Routes: {tag}\n"
        of_tag = [entry for entry in operations if entry[2]["tags"][0] == tag]
        yield from table(
            ("route", "purpose", "role", "parameters", "body", "response"), (_row(*entry) for entry in of_tag)
        )
    yield "\n## Types\n"
    for name, schema in sorted(described["components"]["schemas"].items()):
        yield from (f"\n### {name}\n", " ".join(schema.get("description", "").split()), "")
        if "enum" in schema:
            yield f"One of {', '.join(f'`{value}`' for value in schema['enum'])}."
        required = schema.get("required", ())
        yield from table(
            ("field", "type", "meaning"),
            (
                (f"`{key}`", _type(field) + ("" if key in required else ", optional"), field.get("description", ""))
                for key, field in schema.get("properties", {}).items()
            ),
        )


def _row(method: str, path: str, operation: Schema) -> tuple[str, ...]:
    purpose = operation["description"].partition("\n\n")[0]
    parameters = ", ".join(f"`{item['name']}`" for item in operation.get("parameters", ()) if item["in"] == "query")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    return (
        f"`{method} {path}`",
        purpose,
        operation.get("x-role", ""),
        parameters,
        _type(body) if body else "",
        _response(operation["responses"]),
    )


def _response(responses: Mapping[str, Schema]) -> str:
    contents: list[Schema] = [answer.get("content", {}) for code, answer in responses.items() if code.startswith("2")]
    nothing: tuple[str, Schema] = ("", {})
    kind, described = next(((kind, value) for content in contents for kind, value in content.items()), nothing)
    return _type(described["schema"]) if described.get("schema") else f"`{kind}`" if kind else ""


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type, choices)))
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema.get('items', {}))}"
        case "object":
            inner = schema.get("additionalProperties")
            return f"{_type(inner)} by name" if isinstance(inner, Mapping) and inner else "object"
        case "string":
            return "text"
        case None:
            return "value"
        case other:
            return str(other)


PAGE = Page(name="rest-api", body=_body)
