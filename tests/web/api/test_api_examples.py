"""Every operation of the API has examples, and each fits what the document says."""

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from web.routes.api.documents import document
from web.routes.api.examples import VALUES, example_of

OPERATIONS = [
    (f"{method.upper()} {path}", operation)
    for path, methods in document()["paths"].items()
    for method, operation in methods.items()
]


def fits(example: Any, schema: dict[str, Any]) -> None:
    """Raises what does not."""
    whole = {**schema, "components": document()["components"]}
    Draft202012Validator(whole, validate_formats=True).validate(example)


def examples_of(content: dict[str, Any]) -> Iterator[Any]:
    """Those that a body, an answer or a parameter has."""
    if "example" in content:
        yield content["example"]
    named = content.get("examples", {})
    yield from (one["value"] for one in named.values()) if isinstance(named, dict) else named
    yield from content["schema"].get("examples", [])


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_every_answer_of_success_and_every_parameter_has_an_example_that_fits(
    name: str, operation: dict[str, Any]
) -> None:
    answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
    contents = [content for answer in answers for content in answer["content"].values()]
    assert contents, name
    for content in [*contents, *operation.get("parameters", [])]:
        found = list(examples_of(content))
        assert found, f"{name}: {content.get('name', 'the answer')} has no example"
        for example in found:
            fits(example, content["schema"])


def test_a_list_shows_one_of_its_items_and_a_field_the_value_of_its_name() -> None:
    schemas = {"One": {"properties": {"name": {"type": "string"}, "wait_s": {"type": "number"}}}}
    many = {"type": "array", "items": {"$ref": "#/components/schemas/One"}}
    assert example_of(many, schemas, "items") == [{"name": VALUES["name"][0], "wait_s": 2.5}]


def test_a_choice_shows_one_that_says_something() -> None:
    assert example_of({"enum": ["", "fleet", "rule"]}, {}, "source") == "fleet"
