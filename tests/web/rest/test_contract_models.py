"""Response models from contract types: fields, values and meanings."""

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import Field

from astraflow.runtime.config.field_meanings import field_meanings
from tests import make
from web.api_docs.routes import document
from web.app import ROUTES
from web.nodes.api import NodeDetail, NodeResponse
from web.rest.common import NumberedPage, ResponseModel
from web.rest.contract_models import fields_of

SCHEMAS: dict[str, Any] = document(ROUTES)["components"]["schemas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lamp:
    """Lamp of a room."""

    name: str
    """Name of the lamp."""
    watts: int = 2
    label: str = ""

    @property
    def is_lit(self) -> bool:
        """Whether it gives light."""
        return True


@fields_of(Lamp, without=("label",))
class LampResponse(ResponseModel):
    """Lamp, as the API shows it."""

    watts: float = Field(description="Power. Watts.")
    is_lit: bool


def test_a_model_has_the_fields_of_its_type_then_its_own() -> None:
    assert list(LampResponse.model_fields) == ["name", "watts", "is_lit"]
    assert LampResponse.model_fields["watts"].annotation is float
    lamp = LampResponse.model_validate(Lamp(name="a"), from_attributes=True)
    assert lamp.model_dump() == {"name": "a", "watts": 2.0, "is_lit": True}
    assert LampResponse.values_of(Lamp(name="a"), watts=0.5) == {"name": "a", "watts": 0.5, "is_lit": True}


def test_meanings_are_the_docstrings_of_fields_and_properties() -> None:
    assert field_meanings(Lamp) == {"name": "Name of the lamp.", "is_lit": "Whether it gives light."}
    assert field_meanings(int) == {}


def test_a_node_is_returned_with_the_facts_and_metrics_of_its_report() -> None:
    node = replace(
        make.node_report(gauges={"logprob_mismatch": math.nan, "lease_limit": 4.0}), links=(make.link_report(),)
    )
    response = json.loads(NodeDetail.model_validate(NodeDetail.values_of(node, lag={"solver": 1})).model_dump_json())
    assert response["facts"]["pool"] == node.facts.pool
    assert response["state"] == "ready"
    assert response["gauges"] == {"logprob_mismatch": None, "lease_limit": 4.0}
    assert (response["lag"], response["links"][0]["source"]) == ({"solver": 1}, node.links[0].source)
    assert SCHEMAS["NodeDetail"]["properties"]["gauges"]["additionalProperties"]["anyOf"][1] == {"type": "null"}
    assert "links" not in NodeResponse.model_fields


def test_a_page_has_the_items_of_its_number() -> None:
    assert NumberedPage.cut([1, 2, 3], 2, 2) == {"items": [3], "total": 3, "page": 2, "pages": 2}
    assert NumberedPage.cut([], 1, 2) == {"items": [], "total": 0, "page": 1, "pages": 1}


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_field_of_the_api_has_a_meaning(name: str) -> None:
    fields = SCHEMAS[name].get("properties", {})
    assert [key for key, field in fields.items() if not field.get("description")] == []
