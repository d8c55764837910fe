"""Random variants of what peers, policies and files send: no process ends, counts balance, no reward is forged."""

import contextlib
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.tmpdir import TempPathFactory
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import PolicyId, PromptId, Version
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.rewards.code_tests import CodeTests, CodeTestsOptions
from astraflow.rewards.math_answer import MathAnswer, MathAnswerOptions
from tests.hostile.peer import POLICY, hostile_node
from tests.hostile.policies import ADD, CHECK
from tests.system.processes import RunningRun, assert_balanced, running
from tests.trainer.test_checkpoints import Reader, progress, saved

pytestmark = [pytest.mark.slow, pytest.mark.long]

NUMBERS = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, 1.0, -1.0, 1e9, -1e9, 3e38, -3e38, math.nan, math.inf, -math.inf])
)
IDS = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-2, 200))


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """Returns the fields of a trajectory that can be encoded; their values are anything."""
    context, written = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    version = Version(draw(st.one_of(st.integers(0, 3), st.integers(0, 2**40))))
    tokens = draw(st.lists(IDS, min_size=context + written, max_size=context + written))
    return {
        "policy": draw(st.sampled_from([POLICY, PolicyId("judge")])),
        "tokens": np.array(tokens, np.int32),
        "logprobs": np.array(draw(st.lists(NUMBERS, min_size=written, max_size=written)), np.float32),
        "spans": (
            Span(author=Author.CONTEXT, length=context),
            Span(author=Author.MODEL, length=written, version=version),
        ),
        "reward": draw(st.floats(allow_nan=False, allow_infinity=False)),
        "turn_rewards": draw(st.sampled_from([(), (0.5,), (9e8,), (-1e300,)])),
        "reward_terms": draw(st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=3)),
        "metrics": draw(st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=3)),
        "labels": draw(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3)),
        "answer": draw(st.text(max_size=50)),
        "is_truncated": draw(st.booleans()),
    }


SNIPPETS = (
    "import os, sys, json, builtins, threading, atexit",
    "class Any(int):\n    def __eq__(self, other): return True\n    def __hash__(self): return 1",
    "builtins.all = builtins.abs = builtins.len = lambda *_: True",
    "builtins.AssertionError = SystemExit",
    "json.dumps = lambda *_, **__: '[3, 10]'",
    "print('passed', flush=True)",
    "atexit.register(print, 'passed')",
    "threading.Thread(target=lambda: os.write(1, b'passed')).start()",
    "sys.stdout.write('3\\n10\\n'); sys.stdout.flush()",
    "sys.setrecursionlimit(10**6)",
    "sys.modules['json'] = sys",
    "def check(candidate): pass",
    "sys.settrace(lambda *_: None)",
    "os.close(1)",
    "os._exit(0)",
    "raise SystemExit(0)",
)
ENDS = (
    "def add(a, b): return 0",
    "def add(a, b): return Any(0)",
    "def add(a, b): os._exit(0)",
    "def add(a, b): raise StopIteration",
    "add = lambda a, b: a - b",
)
MATH = st.lists(
    st.sampled_from(
        [*"0123456789+-^*!(){}[]=,.", "\\frac", "\\sqrt", "\\sum_{k=1}", "\\int", "10^{9}", "x", "e", "\\binom"]
    ),
    min_size=1,
    max_size=40,
).map("".join)
"""Texts of expressions, most of which mean nothing."""


def test_no_program_of_a_policy_forges_a_reward() -> None:
    reward = CodeTests(CodeTestsOptions.model_validate({"case_cpu_s": 1}))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(started(reward)):

        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.sampled_from(SNIPPETS), max_size=4), st.sampled_from(ENDS), st.sampled_from([ADD, CHECK]))
        def solve(snippets: list[str], end: str, tests: list[Any]) -> None:
            prompt = Prompt(id=PromptId("p"), fields={"tests": tests})
            code = "\n".join([SNIPPETS[0], SNIPPETS[1], *snippets, end])
            score = portal.call(reward.score, prompt, f"```python\n{code}\n```\n", Finish.STOP)
            assert score.value == 0.0, code

        solve()


def test_no_expression_of_a_policy_holds_up_or_ends_the_reward() -> None:
    reward = MathAnswer(MathAnswerOptions(workers=2))
    prompt = Prompt(id=PromptId("p"), fields={"question": "?", "answer": "123456.75"})
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(started(reward)):

        @settings(deadline=20_000, suppress_health_check=list(HealthCheck))
        @given(MATH)
        def answer(expression: str) -> None:
            assert portal.call(reward.score, prompt, f"\\boxed{{{expression}}}", Finish.STOP).value == 0.0
            assert portal.call(reward.score, prompt, "\\boxed{123456.75}", Finish.STOP).value == 1.0

        answer()


@asynccontextmanager
async def started(reward: CodeTests | MathAnswer) -> AsyncIterator[None]:
    await reward.start()
    try:
        yield
    finally:
        await reward.close()


@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_changed_data_file_is_refused_or_has_usable_prompts(
    tmp_path_factory: TempPathFactory, data: st.DataObject
) -> None:
    lines = b'{"question": "q\\u00e9", "answer": 1.5, "more": [1, {"x": null}]}\n{"question": "r", "answer": "b"}\n'
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    path.write_bytes(changed(data, lines))
    try:
        dataset = datasets.build({"kind": "jsonl", "path": str(path)}, 0)
    except InvalidInput:
        return
    for number in range(dataset.size):
        fields = dataset.prompt(number).fields
        json.dumps(fields, allow_nan=False).encode()
        assert isinstance(fields["question"], str) and isinstance(fields["answer"], str)


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(st.data())
def test_a_changed_checkpoint_is_set_aside_or_unchanged_in_meaning(
    tmp_path_factory: TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoints = saved(folder, 1, 2)
    paths = sorted(path for path in (folder / "step-00000002").rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(paths))
    path.write_bytes(changed(data, path.read_bytes()))
    assert checkpoints.load(Reader()) in (progress(2), replace(progress(1), damaged=2))


def changed(data: st.DataObject, content: bytes) -> bytes:
    """Returns bytes that are flipped, cut, repeated or replaced somewhere."""
    begin, end = sorted(data.draw(st.tuples(st.integers(0, len(content)), st.integers(0, len(content)))))
    middle = data.draw(st.one_of(st.just(b""), st.binary(max_size=20), st.just(content[begin:end] * 2)))
    return content[:begin] + middle + content[end:]


def test_no_result_of_one_node_stops_a_trainer(tmp_path: Path, forked_programs: None) -> None:
    options = ("--no-web", "--set", "stop.reward=2", "--set", "stop.steps=100000")
    run_dir = tmp_path / "run"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running("reverse", run_dir, *options, limit_s=1200)) as run,
    ):
        portal.call(run.steps_more, 2)
        pids = run.pids()
        _push_examples(portal, run)
        assert_balanced(portal.call(run.steps_more, 3))
        assert run.pids() == pids, "a process was restarted"


def _push_examples(portal: BlockingPortal, run: RunningRun) -> None:
    names = iter(range(10**6))

    @settings(deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(fields(), min_size=1, max_size=4))
    def push(examples: list[dict[str, Any]]) -> None:
        portal.call(partial(_pushed, run, f"variant-{next(names)}", examples))
        assert_balanced(portal.call(run.report))

    push()


async def _pushed(run: RunningRun, name: str, examples: list[dict[str, Any]]) -> None:
    async with hostile_node(run, name) as node:
        tasks = await node.lease(len(examples))
        with contextlib.suppress(AstraFlowError):  # refused as a whole
            await node.push_episodes(
                [node.episode(task, example) for task, example in zip(tasks, examples, strict=False)]
            )
