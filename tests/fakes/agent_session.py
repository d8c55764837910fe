"""A session of an agent program as its workflow returns it: three branches of one conversation, and recorded calls."""

import json
import math
from itertools import accumulate
from typing import Any

import numpy as np

from astraflow.contract.ids import FlowId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.agent_calls import AgentCall, CallOutcome, LiveSession
from astraflow.contract.rollouts.spans import POLICY_SPEAKER, Author, Ending, Span
from astraflow.contract.rollouts.trajectories import Trajectory

SYSTEM = "You fix programs. Use the tools; answer with DONE when the tests pass."
TASK = "The test test_parse_date fails. Find the cause and fix it."
READ = '<tool_call>\n{"name": "read_file", "arguments": {"path": "src/dates.py"}}\n</tool_call>'
FILE = "\n".join(f"{line:3}  def part_{line}(text): return text.split('-')[{line % 3}]" for line in range(1, 60))
THOUGHT = "<think>\nThe month and the day are exchanged in part_2: the index is wrong for ISO dates.\n</think>\n"
PATCH = THOUGHT + '<tool_call>\n{"name": "apply_patch", "arguments": {"patch": "@@ -2 +2 @@"}}\n</tool_call>'
PASSED = "12 passed in 0.31 s"
DONE = "DONE"
SUMMARY = "Summary of the conversation so far: src/dates.py has one function for each part."
SEARCH = "Which function reads the month?"

Part = tuple[str, str]
"""Speaker (`model` for the policy) and text."""


def agent_trajectories(*, policy: str = "solver", version: int = 0, reward: float = 1.0) -> tuple[Trajectory, ...]:
    """Returns the main conversation, a branch after its first turn (the agent compacted it), and a sub-agent."""
    main = [("", f"{SYSTEM}\n{TASK}\n"), ("model", READ), ("tool", FILE), ("model", PATCH), ("tool", PASSED)]
    branch = [*main[:1], (POLICY_SPEAKER, READ), ("user", SUMMARY), ("model", "I look at the tests first.")]
    sub_agent = [("", SEARCH), ("model", "part_2 reads the month.")]
    common: dict[str, Any] = {"policy": policy, "version": version, "reward": reward}
    return (
        _trajectory([*main, ("model", DONE)], _main_calls(), role="agent", ending=Ending.DONE, **common),
        _trajectory(branch, _branch_calls(), role="agent", parent=0, parent_turn=0, **common),
        _trajectory(sub_agent, _sub_agent_calls(), role="searcher", parent=0, parent_turn=1, **common),
    )


def live_session(task: str, *, age_s: float, idle_s: float = 0.4, waiting_calls: int = 1) -> LiveSession:
    """Returns a session that runs now."""
    return LiveSession(
        task=TaskId(task),
        flow=FlowId(task.partition(":")[0]),
        age_s=age_s,
        calls=7,
        waiting_calls=waiting_calls,
        tokens=1840,
        idle_s=idle_s,
    )


def _main_calls() -> tuple[AgentCall, ...]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    first = _call(0.2, 1.31, messages, READ, turn=0)
    messages = [*messages, {"role": "assistant", "content": READ}, {"role": "tool", "content": FILE}]
    aborted = _call(1.9, 4.0, messages, "", outcome=CallOutcome.ABORTED)
    second = _call(6.1, 2.75, messages, PATCH, turn=1)
    replayed = _call(9.0, 0.004, messages, PATCH, turn=1, outcome=CallOutcome.REPLAYED)
    messages = [*messages, {"role": "assistant", "content": PATCH}, {"role": "tool", "content": PASSED}]
    last = _call(14.2, 0.5, messages, DONE, turn=2)
    refused = _call(15.0, 0.001, messages, "cannot complete the call: 3 turns are allowed", outcome=CallOutcome.REFUSED)
    return (first, aborted, second, replayed, last, refused)


def _branch_calls() -> tuple[AgentCall, ...]:
    return (_call(10.4, 1.1, [{"role": "user", "content": SUMMARY}], "I look at the tests first.", turn=0),)


def _sub_agent_calls() -> tuple[AgentCall, ...]:
    return (_call(7.5, 0.8, [{"role": "user", "content": SEARCH}], "part_2 reads the month.", turn=0),)


def _call(
    began_s: float,
    duration_s: float,
    messages: list[dict[str, str]],
    answer: str,
    *,
    turn: int | None = None,
    outcome: CallOutcome = CallOutcome.ANSWERED,
) -> AgentCall:
    is_error = outcome is CallOutcome.REFUSED
    reply = {"choices": [{"message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}]}
    return AgentCall(
        began_s=began_s,
        duration_s=duration_s,
        dialect="chat",
        model="solver",
        request=json.dumps({"model": "solver", "messages": messages, "temperature": 1.0}),
        reply=answer if is_error or not answer else json.dumps(reply),
        outcome=outcome,
        turn=turn,
    )


def _trajectory(
    parts: list[Part],
    calls: tuple[AgentCall, ...],
    *,
    policy: str,
    version: int,
    reward: float,
    role: str,
    parent: int | None = None,
    parent_turn: int | None = None,
    ending: Ending | None = None,
) -> Trajectory:
    """Returns a trajectory of these parts, whose tokens are words of up to four characters."""
    ends = list(accumulate(len(text) for _, text in parts))
    spans: list[Span] = []
    token_ends: list[int] = []
    for (speaker, text), end in zip(parts, ends, strict=True):
        tokens = math.ceil(len(text) / 4)
        if speaker == "model":
            spans.append(Span(author=Author.MODEL, length=tokens, version=Version(version)))
            token_ends += [min(end, end - len(text) + 4 * (index + 1)) for index in range(tokens)]
        else:
            spans.append(Span(author=Author.CONTEXT, length=tokens, speaker=speaker))
    return Trajectory(
        policy=PolicyId(policy),
        tokens=np.arange(sum(span.length for span in spans), dtype=np.int32),
        logprobs=np.full(len(token_ends), -0.25, dtype=np.float32),
        spans=tuple(spans),
        reward=reward,
        prompt_text=parts[0][1],
        completion_text="".join(text for _, text in parts[1:]),
        text_ends=tuple(ends),
        span_s=(0.5,) * len(spans),
        role=role,
        parent=parent,
        parent_turn=parent_turn,
        ending=ending,
        token_ends=tuple(token_ends),
        calls=calls,
    )
