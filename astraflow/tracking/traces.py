"""Sampled trajectories as traces: turns of the model with their calls and what followed, in the layouts of others.

A trace is computed once (`trace_of`) and written by one function for each layout: documents of Harbor's ATIF, and spans
by OpenTelemetry's conventions for generative AI.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from itertools import islice
from typing import Any

from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.spans import Author
from astraflow.runtime.redaction import without_secrets
from astraflow.runtime.tracing import Attribute, SpanRecord
from astraflow.tools.call_parsers import call_spans, thought_end
from astraflow.tools.calls import CallFormat, ToolCall

ATIF = "ATIF-v1.8"
"""Version of the Agent Trajectory Interchange Format (RFC 0001 of Harbor)."""
_RESULTS = ("tool", "environment")
"""Speakers of what follows a call."""
_MAX_CALLS = 64
"""Numbers of spans for a turn and its calls."""
_NS = 10**9


@dataclass(slots=True, kw_only=True)
class Turn:
    """Answer of the model with its calls and their results, or text that it read before one."""

    is_answer: bool
    """False for text that it read: the prompt, and words of the user or of other policies."""
    text: str = ""
    seconds: float = 0.0
    version: int | None = None
    """Version of the weights; None for text that it read."""
    read_tokens: int = 0
    """Tokens before the turn. Count."""
    tokens: list[int] = field(default_factory=list)
    """Token ids; empty when not recorded."""
    logprobs: list[float] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    """Answers of tools and of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trajectory as turns."""

    sample: SampledTrajectory
    turns: tuple[Turn, ...]

    @property
    def name(self) -> str:
        """Identity of the trajectory in its run."""
        return f"{self.sample.task}/{self.sample.index}"

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the trajectory that no layout has a field for."""
        sample = self.sample
        named = {"flow": str(sample.flow), "group": str(sample.group), "role": sample.role, "outcome": sample.outcome}
        scored = {"reward": sample.reward, "reward_terms": dict(sample.reward_terms), "step": sample.step}
        ending = None if sample.ending is None else sample.ending.value
        return {**named, **scored, "is_truncated": sample.is_truncated, "ending": ending}


def trace_of(sample: SampledTrajectory, *, hides_secrets: bool = True) -> Trace:
    """Returns a trajectory as turns, with the texts of its spans."""
    turns: list[Turn] = []
    logprobs, begin, read = iter(sample.logprobs), 0, 0
    text = sample.prompt_text + sample.completion_text
    ends = sample.text_ends or (len(sample.prompt_text), *[len(text)] * (len(sample.spans) - 1))
    for index, (span, end) in enumerate(zip(sample.spans, ends, strict=False)):
        part = str(without_secrets(text[begin:end])) if hides_secrets else text[begin:end]
        seconds = sample.span_s[index] if index < len(sample.span_s) else 0.0
        is_answer = span.author is Author.MODEL
        if turns and not is_answer and span.speaker in _RESULTS:
            turns[-1].results.append(part)
        else:
            if not (turns and is_answer and turns[-1].is_answer and not turns[-1].results):  # else its weights changed
                weights = None if span.version is None else int(span.version)
                turns.append(Turn(is_answer=is_answer, version=weights, read_tokens=read))
            turns[-1].text += part
        turns[-1].seconds += seconds
        if is_answer:
            turns[-1].tokens.extend(sample.token_ids[read : read + span.length])
            turns[-1].logprobs.extend(islice(logprobs, span.length))
        begin, read = end, read + span.length
    for turn in turns:
        if turn.is_answer:
            spans = call_spans(turn.text, CallFormat.HERMES, ())
            turn.calls.extend(call for span in spans for call in span.calls if isinstance(call, ToolCall))
    return Trace(sample=sample, turns=tuple(turns))


def atif(trace: Trace) -> dict[str, Any]:
    """Returns the document of a trajectory in the layout of ATIF. Source: RFC 0001 of Harbor, version 1.8."""
    sample = trace.sample
    times = _begins(trace)
    answers = [turn for turn in trace.turns if turn.is_answer]
    return {
        "schema_version": ATIF,
        "session_id": str(sample.task),
        "trajectory_id": trace.name,
        "agent": {"name": "astraflow", "version": version("astraflow"), "model_name": str(sample.policy)},
        "steps": [_step(index + 1, turn, times[index]) for index, turn in enumerate(trace.turns)],
        "final_metrics": {
            "total_prompt_tokens": sum(turn.read_tokens for turn in answers),
            "total_completion_tokens": sample.model_tokens,
            "total_steps": len(trace.turns),
        },
        "extra": trace.facts,
    }


def messages_of(trace: Trace) -> list[dict[str, Any]]:
    """Returns a trajectory as messages of OpenAI's chat, in which results name their calls as far as they are known."""
    messages: list[dict[str, Any]] = []
    for step in atif(trace)["steps"]:
        role = "assistant" if step["source"] == "agent" else "user"
        calls = [
            {
                "id": call["tool_call_id"],
                "type": "function",
                "function": {"name": call["function_name"], "arguments": json.dumps(call["arguments"])},
            }
            for call in step.get("tool_calls", ())
        ]
        messages.append({"role": role, "content": step["message"], **({"tool_calls": calls} if calls else {})})
        for result in step.get("observation", {}).get("results", ()):
            known = {"tool_call_id": result["source_call_id"]} if "source_call_id" in result else {}
            messages.append({"role": "tool", "content": result["content"], **known})
    return messages


def _step(number: int, turn: Turn, begin_ns: int) -> dict[str, Any]:
    when = datetime.fromtimestamp(begin_ns / _NS, tz=UTC).isoformat()
    step: dict[str, Any] = {"step_id": number, "timestamp": when, "source": "user", "message": turn.text}
    if not turn.is_answer:
        return step
    thought_size = max(0, thought_end(turn.text))
    if thought_size:
        step["reasoning_content"] = turn.text[:thought_size].replace("<think>", "", 1).strip()
    ids = [f"call_{number}_{index}" for index in range(len(turn.calls))]
    if ids:
        step["tool_calls"] = [
            {"tool_call_id": identity, "function_name": call.name, "arguments": dict(call.arguments)}
            for identity, call in zip(ids, turn.calls, strict=True)
        ]
    if turn.results:
        step["observation"] = {"results": list(_results(turn, ids))}
    metrics: dict[str, Any] = {"prompt_tokens": turn.read_tokens, "completion_tokens": len(turn.logprobs)}
    if turn.tokens:
        metrics |= {"completion_token_ids": turn.tokens, "logprobs": turn.logprobs}
    return {**step, "source": "agent", "metrics": metrics, "extra": {"version": turn.version}}


def _results(turn: Turn, ids: list[str]) -> Iterator[dict[str, Any]]:
    """Yields results; each names its call where there are as many."""
    for index, content in enumerate(turn.results):
        named = {"source_call_id": ids[index]} if len(ids) == len(turn.results) else {}
        yield {**named, "content": content}


def genai_spans(trace: Trace, *, run: str) -> Iterator[SpanRecord]:
    """Yields the spans of a trajectory: its agent, below it a call of the model for each turn and each call of a tool.

    Source: semantic conventions of OpenTelemetry for generative AI.
    """
    spans = _Spans(trace=trace, run=run)
    times = [*_begins(trace), int(trace.sample.at * _NS)]
    yield spans.record("invoke_agent", str(trace.sample.flow), 0, times[0], times[-1], spans.of_agent)
    for index, turn in enumerate(trace.turns):
        if turn.is_answer:
            number, begin, end = _MAX_CALLS * (index + 1), times[index], times[index + 1]
            last = trace.turns[index - 1] if index else None
            question = "" if last is None else "\n".join(last.results) or last.text
            yield spans.record("chat", str(trace.sample.policy), number, begin, end, spans.of_answer(turn, question))
            for index_of_call, call in enumerate(turn.calls[: _MAX_CALLS - 1]):
                values = spans.of_call(turn, index_of_call)
                yield spans.record("execute_tool", call.name, number + 1 + index_of_call, begin, end, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Spans of one trajectory. Its ids follow from the run and the trajectory, so that a second export repeats them."""

    trace: Trace
    run: str

    def record(
        self, operation: str, name: str, number: int, begin: int, end: int, values: Mapping[str, Attribute]
    ) -> SpanRecord:
        """Returns a span. number: 0 for the root. begin, end: Unix nanoseconds. values: without `gen_ai.`."""
        identity = int.from_bytes(blake2b(f"{self.run}\0{self.trace.name}".encode(), digest_size=16).digest(), "big")
        shared = {"operation.name": operation, "provider.name": "astraflow"}
        conversation = {"conversation.id": str(self.trace.sample.task)}
        named = {f"gen_ai.{key}": value for key, value in {**shared, **conversation, **values}.items()}
        return SpanRecord(
            name=f"{operation} {name}",
            trace=identity,
            span=(identity + number) % 2**64 or 1,
            parent=(identity % 2**64 or 1) if number else None,
            links=(),
            began_ns=begin,
            ended_ns=max(begin, end),
            attributes=named,
            error="",
        )

    @property
    def of_agent(self) -> dict[str, Attribute]:
        """Attributes of the whole trajectory."""
        facts = {key: value for key, value in self.trace.facts.items() if isinstance(value, str | float | int)}
        return {"agent.name": str(self.trace.sample.flow), **{f"evaluation.{key}": fact for key, fact in facts.items()}}

    def of_answer(self, turn: Turn, question: str) -> dict[str, Attribute]:
        """Attributes of a turn of the model. question: what it read last."""
        policy = str(self.trace.sample.policy)
        return {
            "request.model": policy,
            "response.model": f"{policy}@{turn.version}",
            "usage.input_tokens": turn.read_tokens,
            "usage.output_tokens": len(turn.tokens),
            "input.messages": _messages("user", question),
            "output.messages": _messages("assistant", turn.text),
        }

    def of_call(self, turn: Turn, index_of_call: int) -> dict[str, Attribute]:
        """Attributes of a call of a tool. index_of_call: among the calls of its turn."""
        call, has_each = turn.calls[index_of_call], len(turn.results) == len(turn.calls)
        return {
            "tool.name": call.name,
            "tool.call.arguments": json.dumps(dict(call.arguments), ensure_ascii=False),
            "tool.call.result": turn.results[index_of_call] if has_each else "\n".join(turn.results),
        }


def _messages(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}], ensure_ascii=False)


def _begins(trace: Trace) -> list[int]:
    """Returns the begin of each turn: those whose duration is unknown take no time. Unix nanoseconds."""
    sample, begins = trace.sample, list[int]()
    now = sample.at - max(sample.duration_s, sum(turn.seconds for turn in trace.turns))
    for turn in trace.turns:
        begins.append(int(now * _NS))
        now += turn.seconds
    return begins
