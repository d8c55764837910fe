"""The good character and slow nodes: which nodes it retires, and when it does not."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from maintainer.agent.llm.conversation_view import ConversationView, Step
from maintainer.agent.llm.heuristic_baseline import good
from maintainer.agent.llm.interface import Message, TextPart, ToolCall, ToolReply

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


def conversation(
    *answered_calls: tuple[ToolCall, Mapping[str, Any]], waits: float = 0.5, **pool: Any
) -> ConversationView:
    """Returns the conversation of a wake for a slow region, with the given tool calls and replies."""
    signals = [{"signal": "straggler", "pool": "eu", "node": node, "value": 0.2} for node in SLOW]
    report = {"streams": [{"wait_fraction": waits}], "pools": [{**POOL, **pool}]}
    opening = TextPart(text=f"{json.dumps({'woken_by': signals})}\nfleet_report: {json.dumps(report)}")
    messages = [Message(role="user", parts=(opening,))]
    for call, reply in answered_calls:
        messages += [
            Message(role="assistant", parts=(call,)),
            Message(role="user", parts=(ToolReply(call=call.id, content=json.dumps(reply)),)),
        ]
    return ConversationView(tuple(messages))


def looked(nodes: Sequence[str] = SLOW) -> tuple[ToolCall, Mapping[str, Any]]:
    call = ToolCall(id="call-1", name="fleet_nodes", arguments={"pool": "eu", "filter": "straggler"})
    return call, {"nodes": [{"node": node, "pool": "eu"} for node in nodes], "matching": len(nodes)}


def retired(steps: list[Step]) -> list[str]:
    """Returns the nodes that the only step plans to retire; empty when the step is a note."""
    [step] = steps
    if isinstance(step, str):
        return []
    assert (step.name, (step.arguments or {})["target"]) == ("fleet_plan", None)
    return list((step.arguments or {})["retire"])  # type: ignore[arg-type]  # node names


def test_the_good_character_reads_before_it_retires() -> None:
    [step] = good(conversation())
    assert isinstance(step, ToolCall)
    assert (step.name, (step.arguments or {})["filter"]) == ("fleet_nodes", "straggler")


def test_the_good_character_retires_two_nodes_of_a_slow_region() -> None:
    assert retired(good(conversation(looked()))) == SLOW[:2]


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
def test_the_good_character_retires_no_more_than_the_limits_allows(
    why: str, pool: Mapping[str, Any], number: int
) -> None:
    assert len(retired(good(conversation(looked(), **pool)))) == number, why


def test_the_good_character_keeps_slow_nodes_while_the_trainer_does_not_wait() -> None:
    assert retired(good(conversation(looked(), waits=0.0))) == []
