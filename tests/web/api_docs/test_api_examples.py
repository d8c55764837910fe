"""Examples of API operations: every operation has some, and each matches its schema."""

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from web.api_docs.examples import VALUES, example_of
from web.api_docs.routes import document
from web.app import ROUTES

DOCUMENT = document(ROUTES)
OPERATIONS = [
    (f"{method.upper()} {path}", operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


def fits(example: Any, schema: dict[str, Any]) -> None:
    """Raises a validation error if the example does not match the schema."""
    whole = {**schema, "components": DOCUMENT["components"]}
    Draft202012Validator(whole, validate_formats=True).validate(example)


def examples_of(content: dict[str, Any]) -> Iterator[Any]:
    """Yields the examples of a request body, a response or a parameter."""
    if "example" in content:
        yield content["example"]
    named = content.get("examples", {})
    yield from (example["value"] for example in named.values()) if isinstance(named, dict) else named
    yield from content["schema"].get("examples", [])


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_every_response_and_parameter_has_a_valid_example(name: str, operation: dict[str, Any]) -> None:
    answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
    contents = [content for answer in answers for content in answer["content"].values()]
    assert contents, name
    for content in [*contents, *operation.get("parameters", [])]:
        examples = list(examples_of(content))
        assert examples, f"{name}: {content.get('name', 'the answer')} has no example"
        for example in examples:
            fits(example, content["schema"])


def test_an_example_of_a_list_has_one_item_and_named_fields_their_values() -> None:
    schemas = {"One": {"properties": {"name": {"type": "string"}, "wait_s": {"type": "number"}}}}
    many = {"type": "array", "items": {"$ref": "#/components/schemas/One"}}
    assert example_of(many, schemas, "items") == [{"name": VALUES["name"][0], "wait_s": 2.5}]


def test_an_example_of_a_choice_is_not_empty() -> None:
    assert example_of({"enum": ["", "fleet", "rule"]}, {}, "source") == "fleet"
