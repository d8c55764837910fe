"""An environment by name gives dataset and workflow of a flow."""

from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.dataflow.config import EvaluationConfig, FlowConfig
from tests.errors import raises_code

VERIFIERS = {"kind": "verifiers", "id": "owner/words", "args": {"length": 3}, "limit": 9, "workers": 4}


def test_a_program_of_a_package_scores_itself() -> None:
    flow = FlowConfig.parse({"environment": VERIFIERS}, where="flow")
    assert flow.dataset == {"kind": "verifiers", "id": "owner/words", "args": {"length": 3}, "limit": 9}
    program = {"kind": "verifiers", "id": "owner/words", "args": {"length": 3}, "workers": 4}
    scored = {"score": {"by": "value"}, "failed_exit": "zero"}
    assert flow.workflow == {"kind": "agent", "program": program, "fields": ["task"], **scored}


def test_a_world_of_steps_is_acted_in() -> None:
    environment = {"kind": "openenv", "id": "maze:app", "size": 5, "text": "board"}
    flow = EvaluationConfig.parse({"environment": environment}, where="flow")
    assert flow.dataset == {"kind": "openenv", "size": 5}
    world = {"kind": "openenv", "id": "maze:app", "text": "board"}
    assert flow.workflow == {"kind": "act", "environment": world}


def test_a_folder_of_harbor_is_a_terminal() -> None:
    flow = FlowConfig.parse({"environment": {"kind": "harbor", "path": "/tasks", "runner": "podman"}}, where="flow")
    assert flow.dataset == {"kind": "terminal", "path": "/tasks"}
    assert flow.workflow == {
        "kind": "act",
        "environment": {"kind": "terminal", "path": "/tasks", "runner": "podman"},
    }


def test_other_environments_take_the_dataset_of_their_kind_or_that_of_the_flow() -> None:
    flow = FlowConfig.parse(
        {"environment": {"kind": "textcraft", "max_steps": 9}, "dataset": {"size": 7}}, where="flow"
    )
    assert flow.dataset == {"kind": "textcraft", "size": 7}
    assert flow.workflow == {"kind": "act", "environment": {"kind": "textcraft", "max_steps": 9}}
    served = {"kind": "http", "url": "http://127.0.0.1:1"}
    flow = FlowConfig.parse({"environment": served, "dataset": {"kind": "textcraft"}}, where="flow")
    assert (flow.dataset, flow.workflow["environment"]) == ({"kind": "textcraft"}, served)
    for incomplete in (served, "verifiers"):
        with raises_code(InvalidInput, "config.invalid", "dataset"):
            FlowConfig.parse({"environment": incomplete}, where="flow")


def test_what_the_flow_sets_itself_is_kept_and_reading_it_again_changes_nothing() -> None:
    values: dict[str, Any] = {"environment": VERIFIERS, "workflow": {"max_turns": 3}, "dataset": {"limit": 5}}
    flow = FlowConfig.parse(values, where="flow")
    assert (flow.workflow["max_turns"], flow.dataset["limit"]) == (3, 5)
    assert FlowConfig.parse(flow.model_dump(mode="json"), where="flow") == flow


@pytest.mark.parametrize("environment", [{"kind": "verifier"}, {"id": "x"}])
def test_an_unknown_kind_is_refused_with_its_code(environment: object) -> None:
    with raises_code(InvalidInput, "environment.unknown_package"):
        FlowConfig.parse({"environment": environment}, where="flow")
