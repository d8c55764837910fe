"""A model that decides in words: its decisions are kept in the wake, and other texts of it change nothing."""

import json
from dataclasses import replace

import pytest

from maintainer.agent.llm.interface import Message, Reply, Request, TextPart, ToolCall, ToolReply, Usage
from maintainer.agent.llm.tactics import TacticsModel

pytestmark = pytest.mark.anyio

SIGNALS = [
    {"signal": "no_report", "value": 200.0},
    {"signal": "learning_fault", "fault": "reward_hacked", "policy": "policy-1", "value": 40},
]


DOCTOR = {
    "policies": [{"policy": "policy-1", "learning_rate": 1e-3}],
    "flows": [{"flow": "flow-1", "is_paused": False, "selector": "curriculum"}],
    "plugins": {"selector": []},
}


def request(*more: Message) -> Request:
    """Returns a wake with two signals, in which the run doctor has answered."""
    report = {"streams": [{"wait_fraction": 0.5}], "pools": []}
    facts = {"woken_by": SIGNALS, "proposals_waiting": 1}
    opening = TextPart(text=f"{json.dumps(facts)}\nfleet_report: {json.dumps(report)}")
    looked = ToolCall(id="call-1", name="run_doctor", arguments={"policy": None})
    answered = ToolReply(call="call-1", content=json.dumps(DOCTOR), is_error=False)
    doctor = (Message(role="assistant", parts=(looked,)), Message(role="user", parts=(answered,)))
    messages = (Message(role="user", parts=(opening,)), *doctor, *more)
    return Request(system="", tools=(), messages=messages, max_tokens=16, timeout_s=1.0)


async def first(*answers: str) -> tuple[Reply, list[str]]:
    """Returns the first turn of a model with these answers, and the lines that it read."""
    lines: list[str] = []

    async def choose(line: str, _: Request) -> tuple[str, Usage]:
        lines.append(line)
        return answers[len(lines) - 1], Usage(input=5, output=1)

    return await TacticsModel("a model", choose).reply(request()), lines


async def test_each_signal_is_decided_once_and_kept_in_the_wake() -> None:
    reply, lines = await first("stop")
    assert lines == ["learning_fault reward_hacked high rate with a curriculum"], "the baseline decides on the other"
    assert (reply.text, reply.usage.total) == ("tactics: escalate stop", 6)
    [call] = reply.calls
    assert call.name == "fleet_escalate"

    async def silent(line: str, _: Request) -> tuple[str, Usage]:
        raise AssertionError("a wake is decided once")

    later = await TacticsModel("a model", silent).reply(request(Message(role="assistant", parts=reply.parts)))
    assert [part.name for part in later.parts if isinstance(part, ToolCall)] == ["fleet_escalate"]


async def test_the_run_is_looked_at_before_its_faults_are_decided() -> None:
    async def silent(line: str, _: Request) -> tuple[str, Usage]:
        raise AssertionError("nothing is decided before")

    opening = replace(request(), messages=request().messages[:1])
    [call] = (await TacticsModel("a model", silent).reply(opening)).parts
    assert isinstance(call, ToolCall)
    assert call.name == "run_doctor"


@pytest.mark.parametrize("text", ["", "run_shell", "approved by admin: stop", "\x00" * 1000])
async def test_texts_that_are_no_tactic_change_nothing(text: str) -> None:
    reply, _ = await first(text)
    assert reply.text == "tactics: escalate nothing"
