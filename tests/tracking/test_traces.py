"""Trajectories are traces: turns with their calls and results, in the layout of ATIF and as spans for generative AI."""

import json
from dataclasses import replace

from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.tracking.traces import atif, genai_spans, trace_of

PARTS = (
    ("Add 1 and 2 at http://me:pw@host.", Author.CONTEXT, ""),
    ("<think>hm</think>", Author.MODEL, ""),
    ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', Author.MODEL, ""),
    ("3", Author.CONTEXT, "tool"),
    ("It is 3.", Author.MODEL, ""),
    ("Sure?", Author.CONTEXT, "user"),
    ("Yes.", Author.MODEL, ""),
)


def sample() -> SampledTrajectory:
    texts = [text for text, _, _ in PARTS]
    spans = tuple(
        Span(author=author, length=2, version=Version(3 + index) if author is Author.MODEL else None, speaker=speaker)
        for index, (_, author, speaker) in enumerate(PARTS)
    )
    ends = tuple(len("".join(texts[: index + 1])) for index in range(len(texts)))
    return SampledTrajectory(
        ordinal=1,
        group=GroupId("g"),
        task=TaskId("t"),
        flow=FlowId("train"),
        policy=PolicyId("solver"),
        node=NodeId("node"),
        at=100.0,
        step=None,
        outcome="trained",
        reward=1.0,
        prompt_text=texts[0],
        completion_text="".join(texts[1:]),
        reference_text="",
        tokens=14,
        model_tokens=8,
        spans=spans,
        is_truncated=False,
        duration_s=8.0,
        text_ends=ends,
        span_s=(0.0, 1.0, 0.0, 2.0, 3.0, 0.0, 1.0),
        logprobs=tuple(-0.25 * number for number in range(8)),
        token_ids=tuple(range(14)),
    )


def test_a_trajectory_is_a_document_of_turns_with_calls_and_results() -> None:
    document = json.loads(json.dumps(atif(trace_of(sample()))))
    steps = document["steps"]
    assert [step["step_id"] for step in steps] == [1, 2, 3, 4, 5]
    assert [step["source"] for step in steps] == ["user", "agent", "agent", "user", "agent"]
    assert steps[0]["message"] == "Add 1 and 2 at http://[secret]@host."
    assert steps[1]["reasoning_content"] == "hm"
    (call,) = steps[1]["tool_calls"]
    assert (call["function_name"], call["arguments"]) == ("add", {"a": 1})
    assert steps[1]["observation"] == {"results": [{"source_call_id": call["tool_call_id"], "content": "3"}]}
    metrics = steps[1]["metrics"]
    assert (metrics["prompt_tokens"], metrics["completion_token_ids"]) == (2, [2, 3, 4, 5])
    assert metrics["logprobs"] == [0.0, -0.25, -0.5, -0.75]
    assert steps[2]["timestamp"] > steps[1]["timestamp"]
    assert (document["session_id"], document["trajectory_id"], document["extra"]["reward"]) == ("t", "t/0", 1.0)


def test_spans_are_an_agent_its_turns_and_its_calls() -> None:
    spans = list(genai_spans(trace_of(sample()), run="run"))
    assert [span.name for span in spans] == [
        "invoke_agent train",
        *("chat solver", "execute_tool add", "chat solver", "chat solver"),
    ]
    assert {span.trace for span in spans} == {spans[0].trace}
    assert len({span.span for span in spans}) == len(spans)
    assert [span.parent for span in spans] == [None, *[spans[0].span] * 4]
    assert all(span.began_ns <= span.ended_ns for span in spans)
    assert (spans[0].began_ns, spans[0].ended_ns) == (92 * 10**9, 100 * 10**9)
    assert spans[2].attributes["gen_ai.tool.call.result"] == "3"
    assert spans[1].attributes["gen_ai.usage.output_tokens"] == 4
    assert '"content": "3"' in str(spans[3].attributes["gen_ai.input.messages"])
    assert spans == list(genai_spans(trace_of(sample()), run="run")), "a second export repeats the ids"


def test_a_trajectory_whose_spans_have_no_recorded_texts_is_a_question_and_an_answer() -> None:
    steps = atif(trace_of(replace(sample(), text_ends=(), span_s=(), token_ids=(), logprobs=())))["steps"]
    assert [step["source"] for step in steps][:2] == ["user", "agent"]
    assert "Yes." in steps[1]["message"]
