"""Records of a task's generations, and their replay to a workflow."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Sampling, VersionSpan
from astraflow.contract.rollouts.partial_rollouts import RecordedGeneration
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.raas.builders import build_flow
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.policies.recorder import RolloutRecorder, request_key
from astraflow.raas.policies.served_policies import ServedPolicies, ServedPolicy, TaskPolicy
from astraflow.runtime.config.base import Config
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClient, RewardScorer
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder
from tests import make
from tests.fakes.clock import settle
from tests.fakes.dataflow import FakeDataflow, flow
from tests.fakes.engine import FakeEngine
from tests.raas.parts import SOLVER, runner, serving

pytestmark = pytest.mark.anyio

PROMPT = ByteTokenizer().encode("ask")
SAMPLING = make.sampling()
KEY = request_key(SOLVER, PROMPT, SAMPLING)


def port(recorder: RolloutRecorder, engine: FakeEngine, counters: NodeCounters | None = None) -> TaskPolicy:
    served = ServedPolicy(SOLVER, engine, ByteTokenizer())
    served.version = Version(0)
    return TaskPolicy(served, make.task(), recorder, counters or NodeCounters())


def recorded(text: str, *, finish: Finish = Finish.STOP, key: bytes = KEY) -> RecordedGeneration:
    return RecordedGeneration(policy=SOLVER, request=key, generation=make.generation(text, version=1, finish=finish))


def text(tokens: Int32Array) -> str:
    return ByteTokenizer().decode(tokens)


def test_request_keys_depend_on_policy_prompt_and_sampling() -> None:
    others = [
        request_key(PolicyId("verifier"), PROMPT, SAMPLING),
        request_key(SOLVER, PROMPT[:-1], SAMPLING),
        request_key(SOLVER, PROMPT, replace(SAMPLING, temperature=0.5)),
        request_key(SOLVER, PROMPT, replace(SAMPLING, top_p=0.9)),
        request_key(SOLVER, PROMPT, replace(SAMPLING, max_new_tokens=17)),
        request_key(SOLVER, PROMPT, replace(SAMPLING, stop_tokens=(1,))),
        request_key(SOLVER, PROMPT, replace(SAMPLING, top_k=5)),
        request_key(SOLVER, PROMPT, replace(SAMPLING, min_p=0.5)),
        request_key(SOLVER, PROMPT, replace(SAMPLING, seed=5)),
        request_key(SOLVER, PROMPT, replace(SAMPLING, stop_strings=("a",))),
        request_key(SOLVER, PROMPT, replace(SAMPLING, json_schema="{}")),
        request_key(SOLVER, PROMPT, replace(SAMPLING, regex="{}")),
    ]
    assert len({KEY, *others}) == 1 + len(others)
    assert KEY.hex() == "7632ddc0319ca29920302fef2bbe3af1", "the key is the same in every process and on every machine"


async def test_a_complete_recorded_generation_is_replayed_without_the_engine() -> None:
    engine, counters = FakeEngine(version=3), NodeCounters()
    recorder = RolloutRecorder([recorded("done")])

    generation = await port(recorder, engine, counters).generate(PROMPT, SAMPLING)

    assert (text(generation.tokens), generation.finish, [span.version for span in generation.spans]) == (
        "done",
        Finish.STOP,
        [1],
    )
    assert not engine.requests
    assert recorder.continued_tokens == 4
    assert {name: counters.counters()[name] for name in ("tokens_continued", "tokens_generated")} == {
        "tokens_continued": 4,
        "tokens_generated": 0,
    }


async def test_a_partial_generation_is_continued_with_the_remaining_length() -> None:
    engine, counters = FakeEngine(version=3), NodeCounters()
    engine.reply = "ba"
    recorder = RolloutRecorder([recorded("dc", finish=Finish.ABORT)])

    generation = await port(recorder, engine, counters).generate(PROMPT, SAMPLING)

    assert (text(generation.tokens), generation.finish) == ("dcba", Finish.STOP)
    assert [(span.version, span.length) for span in generation.spans] == [(1, 2), (3, 3)]
    assert len(generation.logprobs) == 5
    assert [text(prompt) for prompt in engine.prompts] == ["askdc"]
    assert engine.samplings[0].max_new_tokens == SAMPLING.max_new_tokens - 2
    assert engine.requests == ["train:0/0.0.solver.0+2"], "otherwise the random numbers of the first part would repeat"
    assert (counters.counters()["tokens_continued"], counters.counters()["tokens_generated"]) == (2, 3)


async def test_a_partial_generation_of_the_full_length_is_complete() -> None:
    engine = FakeEngine(version=3)
    whole = "x" * SAMPLING.max_new_tokens
    generation = await port(RolloutRecorder([recorded(whole, finish=Finish.ABORT)]), engine).generate(PROMPT, SAMPLING)
    assert (text(generation.tokens), generation.finish, engine.requests) == (whole, Finish.LENGTH, [])


@pytest.mark.parametrize("option", [{"json_schema": "{}"}, {"regex": "a+"}])
async def test_a_partial_generation_with_a_grammar_starts_anew(option: dict[str, str]) -> None:
    engine, counters = FakeEngine(version=3), NodeCounters()
    sampling = replace(SAMPLING, **option)  # type: ignore[arg-type]
    recorder = RolloutRecorder([recorded("dc", finish=Finish.ABORT, key=request_key(SOLVER, PROMPT, sampling))])

    generation = await port(recorder, engine, counters).generate(PROMPT, sampling)

    assert (text(generation.tokens), [text(prompt) for prompt in engine.prompts]) == ("dcba", ["ask"])
    assert (recorder.continued_tokens, counters.counters()["tokens_continued"]) == (0, 0)


async def test_a_partial_generation_continues_where_no_stop_string_has_begun() -> None:
    engine, counters = FakeEngine(version=3), NodeCounters()
    sampling = replace(SAMPLING, max_new_tokens=100, stop_strings=("<end>",))
    begun = 20 * "x" + "<en"
    recorder = RolloutRecorder([recorded(begun, finish=Finish.ABORT, key=request_key(SOLVER, PROMPT, sampling))])

    generation = await port(recorder, engine, counters).generate(PROMPT, sampling)

    kept = text(engine.prompts[0]).removeprefix("ask")
    assert kept
    assert kept.strip("x") == ""
    assert text(generation.tokens) == kept + "dcba"
    assert engine.samplings[0].max_new_tokens == 100 - len(kept)
    assert (recorder.continued_tokens, counters.counters()["tokens_continued"]) == (len(kept), len(kept))


async def test_a_recorded_generation_is_used_once_and_only_for_its_request() -> None:
    engine = FakeEngine(version=3)
    recorder = RolloutRecorder([recorded("one"), recorded("two"), recorded("other", key=b"other")])
    engine_port = port(recorder, engine)
    texts = [text((await engine_port.generate(PROMPT, SAMPLING)).tokens) for _ in range(3)]
    assert texts == ["one", "two", "dcba"]
    assert text((await engine_port.generate(PROMPT[:2], SAMPLING)).tokens) == "dcba"
    assert [text(generation.generation.tokens) for generation in recorder.generations_to_hand_back()] == [
        "one",
        "two",
        "dcba",
        "dcba",
        "other",
    ]
    assert recorder.continued_tokens == 6


async def test_a_generation_can_be_returned_and_continued_twice() -> None:
    engine = FakeEngine(version=3)
    engine.gate.clear()
    engine.begun = "cb"
    first = RolloutRecorder([recorded("d", finish=Finish.ABORT)])
    asking = asyncio.create_task(port(first, engine).generate(PROMPT, SAMPLING))
    await engine.until_requested(1)

    await first.stop()

    assert not asking.done(), "the workflow is cancelled"
    asking.cancel()
    (once,) = first.generations_to_hand_back()
    assert (text(once.generation.tokens), once.generation.finish, once.request) == ("dcb", Finish.ABORT, KEY)
    assert [span.version for span in once.generation.spans] == [1, 3]
    engine.gate.set()
    engine.reply = "a"
    generation = await port(RolloutRecorder(first.generations_to_hand_back()), engine).generate(PROMPT, SAMPLING)
    assert text(generation.tokens) == "dcba"


async def test_a_stopped_recorder_starts_and_continues_no_generation() -> None:
    engine = FakeEngine(version=3)
    recorder = RolloutRecorder()
    await recorder.stop()
    asking = asyncio.create_task(port(recorder, engine).generate(PROMPT, SAMPLING))
    await asyncio.sleep(0)
    assert not asking.done()
    assert not engine.requests
    asking.cancel()
    assert recorder.generations_to_hand_back() == ()


async def test_an_unused_recorded_generation_is_not_returned_again() -> None:
    recorder = RolloutRecorder([recorded("one")])
    await recorder.stop()
    assert recorder.generations_to_hand_back() == ()


async def test_tokens_of_unready_weights_are_not_returned() -> None:
    engine = FakeEngine(version=3)
    engine.gate.clear()
    engine.begun = "dc"
    recorder = RolloutRecorder()
    engine_port = port(recorder, engine)
    asking = asyncio.create_task(engine_port.generate(PROMPT, SAMPLING))
    await engine.until_requested(1)
    engine_port._served.version = None
    await engine.pause(PauseMode.ABORT)
    await recorder.stop()
    with pytest.raises(RolloutFailed) as broke:
        await asking
    assert broke.value.boundary is Boundary.ENGINE
    assert recorder.generations_to_hand_back() == ()


class NoOptions(Config):
    """No options."""


@workflows.register("test_conversation", options=NoOptions)
class Conversation:
    """Runs two branches of two turns side by side; the second turn of a branch quotes its first."""

    policies = (SOLVER,)

    def __init__(self, options: NoOptions) -> None:
        pass

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> tuple[Trajectory, ...]:
        return tuple(await asyncio.gather(*(_branch(policies[SOLVER], name) for name in ("left", "right"))))


async def _branch(port: PolicyClient, name: str) -> Trajectory:
    transcript = TrajectoryBuilder(SOLVER)
    for turn in range(2):
        transcript.add_context(port.tokenizer.encode(f"{name} {turn}: "))
        transcript.add_generation(
            await port.generate(transcript.tokens(), Sampling(max_new_tokens=8, stop_tokens=(10,)))
        )
    return transcript.build(1.0)


@pytest.mark.parametrize("stopped_after", [1, 2, 3, 4])
async def test_a_conversation_continues_after_any_turn(stopped_after: int) -> None:
    spec = flow(workflow={"kind": "test_conversation"})
    build_flow(spec)
    first_engine, second_engine = FakeEngine(version=1), FakeEngine(version=2)
    first_engine.begun = "dc"
    first_engine.answers_at_most = stopped_after - 1
    recorder = RolloutRecorder()
    first = runner(FakeDataflow(flows=(spec,)), serving(first_engine), NodeCounters())
    running = asyncio.create_task(first.run(make.task(), recorder))
    await first_engine.until_requested(min(4, stopped_after + 1))
    await settle()
    await recorder.stop()
    running.cancel()
    handed_back = recorder.generations_to_hand_back()

    resumed = RolloutRecorder(handed_back)
    second = runner(FakeDataflow(flows=(spec,)), serving(second_engine), NodeCounters())
    episode = await second.run(make.task(), resumed)

    written = sum(len(generation.generation.tokens) for generation in handed_back)
    assert episode.failure is None
    assert resumed.continued_tokens == episode.continued_tokens == written
    by_first = [s.length for trajectory in episode.trajectories for s in trajectory.spans if s.version == 1]
    assert sum(by_first) == written
    assert not resumed._unused
    assert len(second_engine.requests) == 4 - (stopped_after - 1)


def test_policies_of_a_task_share_one_recorder() -> None:
    served = ServedPolicies({name: ServedPolicy(name, FakeEngine(0), ByteTokenizer()) for name in map(PolicyId, "ab")})
    recorder = RolloutRecorder()
    ports = served.for_task(make.task(), recorder, NodeCounters())
    assert {task_policy._recorder for task_policy in ports.values() if isinstance(task_policy, TaskPolicy)} == {
        recorder
    }


async def test_seeds_depend_on_task_and_request_but_not_on_the_node() -> None:
    seeds = []
    for task in (make.task(member=0), make.task(member=1), make.task(member=0)):
        engine = FakeEngine(version=3)
        client = serving(engine).for_task(task, RolloutRecorder(), NodeCounters())[SOLVER]
        for _ in range(2):
            await client.generate(PROMPT, replace(SAMPLING, seed=5))
        seeds += [sampling.seed for sampling in engine.samplings]
    assert seeds[:2] == seeds[4:]
    assert len(set(seeds)) == 4


@pytest.mark.parametrize("tokens", [[1] * (SAMPLING.max_new_tokens + 1), [1, 10**6], [-1, 1]])
async def test_tokens_that_a_request_cannot_have_led_to_are_generated_again(tokens: list[int]) -> None:
    """Another node may have handed back anything."""
    engine = FakeEngine(version=3)
    request = request_key(SOLVER, PROMPT, SAMPLING)
    recorded = make.recorded()
    generation = replace(
        recorded.generation,
        tokens=np.array(tokens, np.int32),
        logprobs=np.full(len(tokens), -0.5, np.float32),
        spans=(VersionSpan(version=Version(0), length=len(tokens)),),
    )
    recorder = RolloutRecorder([replace(recorded, request=request, generation=generation)])
    result = await serving(engine).for_task(make.task(), recorder, NodeCounters())[SOLVER].generate(PROMPT, SAMPLING)
    assert {span.version for span in result.spans} == {3}
    assert (len(engine.requests), recorder.continued_tokens) == (1, 0)
