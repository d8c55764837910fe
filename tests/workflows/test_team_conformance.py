"""The suite of workflows on those with several roles."""

from collections.abc import Callable
from typing import Any

import pytest

from astraflow.conformance.workflows import WorkflowCheck
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.testing.plugins import WorkflowSuite
from astraflow.workflows.scripted.policies import Reply, in_order
from tests import make

CODE = "```python\nprint(sum(map(int, input().split())))\n```"
CASES = '```json\n[{"input": "1 2", "output": "4"}, {"input": "1 1", "output": "2"}]\n```'
PROGRAM = Prompt(id=PromptId("sum"), fields={"question": "Add.", "problem": "Add.", "answer": CODE})


def check(spec: dict[str, Any], reply: Reply, prompt: Prompt | None = None) -> Callable[[], WorkflowCheck]:
    return lambda: WorkflowCheck(spec=spec, prompt=prompt or make.prompt(), reply=reply)


class TestSolveAndSelect(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        return check({"kind": "solve_and_select"}, in_order("dcba <choice>B</choice>"))


class TestPlanAndSolve(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        return check({"kind": "plan_and_solve", "solutions": 3}, in_order("dcba"))


class TestRoute(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        return check({"kind": "route"}, in_order("<expert>large</expert>"))


class TestSpawn(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        reply = in_order("<task>a</task><task>b</task>", "a is 1", "b is 2", "dcba")
        return check({"kind": "spawn", "max_context": 3_000_000}, reply)


@pytest.mark.long
class TestSolveAndTest(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        sandbox = {"kind": "local", "workers": 1, "allow_weak": True}
        return check({"kind": "solve_and_test", "sandbox": sandbox}, in_order(f"{CODE} {CASES}"), PROGRAM)


class TestRecursive(WorkflowSuite):
    unsupported = frozenset({"lets a failure of the reward fail the episode"})

    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        prompt = datasets.build({"kind": "textcraft", "size": 3}, 1).prompt(0)
        return check(
            {"kind": "recursive"}, in_order("spawn 1 rope | 2 rope", "inventory", "inventory", "finish"), prompt
        )


class TestVersus(WorkflowSuite):
    unsupported = frozenset({"lets a failure of the reward fail the episode"})

    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        prompt = datasets.build({"kind": "games", "games": ["TicTacToe-v0"]}, 1).prompt(0)
        spec = {"kind": "versus", "game": {"kind": "textarena"}}
        return check(spec, in_order("[0]", "[3]", "[1]", "[4]", "[2]"), prompt)
