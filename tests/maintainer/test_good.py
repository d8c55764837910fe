"""The good character and slow nodes: which ones it has retired, and when it leaves them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from maintainer.llm.base import Message, Said, ToolCall, ToolReply
from maintainer.llm.good import good
from maintainer.llm.talk import Step, Talk

SLOW = [f"node-{number}" for number in range(4)]
POOL: Mapping[str, Any] = {
    "pool": "eu",
    "nodes": {"ready": 4},
    "target": 4,
    "rule_target": 4,
    "rule_reasons": ["below_band"],
    "min_nodes": 1,
    "proposal_state": "none",
}


def talk(*made: tuple[ToolCall, Mapping[str, Any]], waits: float = 0.5, **pool: Any) -> Talk:
    """A wake because of a region that is slow, with what was asked and answered so far."""
    signals = [{"signal": "straggler", "pool": "eu", "node": node, "value": 0.2} for node in SLOW]
    report = {"streams": [{"wait_fraction": waits}], "pools": [{**POOL, **pool}]}
    opening = Said(text=f"{json.dumps({'woken_by': signals})}\nfleet_report: {json.dumps(report)}")
    messages = [Message(role="user", parts=(opening,))]
    for call, reply in made:
        messages += [
            Message(role="assistant", parts=(call,)),
            Message(role="user", parts=(ToolReply(call=call.id, content=json.dumps(reply)),)),
        ]
    return Talk(tuple(messages))


def looked(nodes: Sequence[str] = SLOW) -> tuple[ToolCall, Mapping[str, Any]]:
    call = ToolCall(id="call-1", name="fleet_nodes", arguments={"pool": "eu", "filter": "straggler"})
    return call, {"nodes": [{"node": node, "pool": "eu"} for node in nodes], "matching": len(nodes)}


def retired(steps: list[Step]) -> list[str]:
    """Named by a plan, which is the only step; none when it ends with a note."""
    [step] = steps
    if isinstance(step, str):
        return []
    assert (step.name, (step.arguments or {})["target"]) == ("fleet_plan", None)
    return list((step.arguments or {})["retire"])  # type: ignore[arg-type]  # names


def test_it_looks_before_it_has_anything_retired() -> None:
    [step] = good(talk())
    assert isinstance(step, ToolCall)
    assert (step.name, (step.arguments or {})["filter"]) == ("fleet_nodes", "straggler")


def test_it_retires_two_of_a_region_that_is_slow() -> None:
    assert retired(good(talk(looked()))) == SLOW[:2]


@pytest.mark.parametrize(
    ("why", "pool", "number"),
    [
        ("the last that works stays", {"nodes": {"ready": 2}, "rule_target": 2}, 1),
        ("the last that works stays", {"nodes": {"ready": 1}, "rule_target": 1}, 0),
        ("the pool's bounds hold", {"min_nodes": 3}, 1),
        ("what went is to be replaced first", {"nodes": {"ready": 2, "draining": 2}}, 0),
        ("one of two has come", {"nodes": {"ready": 3, "draining": 1}}, 1),
        ("the rule says nothing", {"rule_target": None}, 2),
        ("the rule sees to it", {"rule_reasons": ["replacing"]}, 0),
        ("people have said no", {"proposal_state": "rejected"}, 0),
    ],
)
def test_it_retires_no_more_than_may_go_without_a_person(why: str, pool: Mapping[str, Any], number: int) -> None:
    assert len(retired(good(talk(looked(), **pool)))) == number, why


def test_it_leaves_slow_nodes_while_nobody_waits() -> None:
    assert retired(good(talk(looked(), waits=0.0))) == []
