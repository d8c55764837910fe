import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.engines.scripted import ScriptedEngine, ScriptedEngineOptions, ScriptedFailure
from astraflow.workflows.solve_and_verify import APPROVE, REJECT, verification_prompt
from tests import make
from tests.errors import raises_code
from tests.fakes.clock import ManualClock, settle

TOKENIZER = ByteTokenizer()
CONSTANT: dict[str, Any] = {
    "first_token_s": {"kind": "constant", "mean": 1.0},
    "tokens": {"kind": "constant", "mean": 11},
    "tokens_per_s": 10.0,
    "swap_s": 0.5,
    "accuracy_start": 1.0,
    "accuracy_ceiling": 1.0,
}
"""Eleven tokens: the first after 1 s, the last after 2 s."""


async def engine(clock: ManualClock | None = None, *, version: int = 0, **options: Any) -> ScriptedEngine:
    parsed = ScriptedEngineOptions.parse({**CONSTANT, **options}, where="engine")
    built = ScriptedEngine(parsed, {"kind": "scripted"}, clock=clock)
    begun = asyncio.create_task(built.load(make.verified_weights(version=version)))
    if clock is not None:
        await clock.pass_time(0.5)
    await begun
    return built


def chat(text: str) -> Int32Array:
    return TOKENIZER.encode_chat([{"role": "user", "content": text}])


def request(
    engine: ScriptedEngine, request_id: str = "a", *, text: str = "say right", max_new_tokens: int = 100
) -> Coroutine[Any, Any, Generation]:
    sampling = Sampling(max_new_tokens=max_new_tokens, stop_tokens=TOKENIZER.stop_tokens)
    return engine.generate(request_id, chat(text), sampling)


def spans(*pairs: tuple[int, int]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(version=Version(version), length=length) for version, length in pairs)


@pytest.mark.anyio
async def test_a_reply_has_the_configured_duration_and_length() -> None:
    clock = ManualClock()
    ready = await engine(clock, version=4)

    task = asyncio.create_task(request(ready))
    await clock.pass_time(1.95)
    assert not task.done()
    await clock.pass_time(0.1)
    generation = task.result()

    assert TOKENIZER.decode(generation.tokens) == "right"
    assert (len(generation.tokens), generation.finish, generation.spans) == (11, Finish.STOP, spans((4, 11)))
    assert generation.logprobs.tolist() == (await ready.score(generation.tokens, 0)).tolist()


@pytest.mark.anyio
async def test_a_generation_across_a_load_has_both_versions() -> None:
    clock = ManualClock()
    ready = await engine(clock)
    task = asyncio.create_task(request(ready))
    await clock.pass_time(1.55)

    await ready.pause(PauseMode.KEEP)
    await clock.pass_time(60)
    assert not task.done()
    loading = asyncio.create_task(ready.load(make.verified_weights(version=1)))
    await clock.pass_time(0.5)
    assert (await loading).stopped_s == 0.5
    await ready.resume()
    await clock.pass_time(0.4)
    assert not task.done()
    await clock.pass_time(0.1)

    assert task.result().spans == spans((0, 6), (1, 5))
    assert task.result().finish is Finish.STOP


@pytest.mark.anyio
async def test_a_load_without_a_pause_delays_generations() -> None:
    clock = ManualClock()
    ready = await engine(clock)
    task = asyncio.create_task(request(ready))
    await clock.pass_time(0.5)

    loading = asyncio.create_task(ready.load(make.verified_weights(version=1)))
    await clock.pass_time(0.5)
    await loading
    await clock.pass_time(1.45)
    assert not task.done()
    await clock.pass_time(0.1)

    assert task.result().spans == spans((1, 11))


@pytest.mark.anyio
async def test_an_aborting_pause_ends_requests_with_partial_answers() -> None:
    clock = ManualClock()
    ready = await engine(clock)
    early, late = (asyncio.create_task(request(ready, name)) for name in "ab")
    await clock.pass_time(1.25)

    await ready.pause(PauseMode.ABORT)

    assert early.result().finish is late.result().finish is Finish.ABORT
    assert (len(early.result().tokens), early.result().spans) == (3, spans((0, 3)))


@pytest.mark.anyio
async def test_a_single_request_can_be_aborted_during_a_pause() -> None:
    clock = ManualClock()
    ready = await engine(clock)
    first, second = (asyncio.create_task(request(ready, name)) for name in "ab")
    await clock.pass_time(0.5)
    await ready.pause(PauseMode.KEEP)

    await ready.abort("a")
    await ready.abort("unknown")
    await settle()

    assert (first.result().finish, len(first.result().tokens), first.result().spans) == (Finish.ABORT, 0, ())
    assert not second.done()
    await ready.close()
    assert (await second).finish is Finish.ABORT


@pytest.mark.anyio
async def test_cancelling_the_caller_cancels_the_request() -> None:
    clock = ManualClock()
    ready = await engine(clock)
    task = asyncio.create_task(request(ready))
    await clock.pass_time(0.5)

    task.cancel()
    await settle()

    assert task.cancelled()
    await ready.pause(PauseMode.ABORT)


@pytest.mark.anyio
async def test_concurrent_requests_slow_each_other_down() -> None:
    clock = ManualClock()
    ready = await engine(clock, half_speed_requests=2.0)
    tasks = [asyncio.create_task(request(ready, name)) for name in "abc"]

    await clock.pass_time(3.95)
    assert not any(task.done() for task in tasks)
    await clock.pass_time(0.1)

    assert [len(task.result().tokens) for task in tasks] == [11, 11, 11]


@pytest.mark.anyio
async def test_the_speed_follows_the_speed_file(tmp_path: Path) -> None:
    clock, file = ManualClock(), tmp_path / "pace"
    ready = await engine(clock, speed_factor_file=str(file))
    for pace, took_s in ((None, 2.0), ("0.25\n", 8.0), ("1", 2.0)):
        if pace is not None:
            file.write_text(pace)
        task = asyncio.create_task(request(ready))
        await clock.pass_time(took_s - 0.05)
        assert not task.done()
        await clock.pass_time(0.1)
        assert len(task.result().tokens) == 11


@pytest.mark.anyio
@pytest.mark.parametrize("content", ["slow", "0", "-1", "nan", "inf"])
async def test_an_invalid_speed_file_is_reported(tmp_path: Path, content: str) -> None:
    file = tmp_path / "pace"
    file.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        await request(await engine(speed_factor_file=str(file)))
    assert caught.value.code == "engine.invalid_speed_factor"


@pytest.mark.anyio
async def test_a_length_limit_cuts_the_reply() -> None:
    generation = await request(await engine(tokens_per_s=0, first_token_s={"mean": 0}, swap_s=0), max_new_tokens=4)

    assert (len(generation.tokens), generation.finish) == (4, Finish.LENGTH)


@pytest.mark.long
@pytest.mark.anyio
async def test_accuracy_rises_with_the_version_and_falls_with_difficulty() -> None:
    async def accuracy(version: int, text: str) -> float:
        at_once: dict[str, Any] = {"tokens_per_s": 0, "first_token_s": {"mean": 0}, "swap_s": 0}
        curve: dict[str, Any] = {"accuracy_start": 0.2, "accuracy_gain": 0.05, "accuracy_ceiling": 0.9}
        ready = await engine(version=version, **at_once, **curve)
        replies = [TOKENIZER.decode((await request(ready, str(number), text=text)).tokens) for number in range(2000)]
        assert set(replies) == {"right", "wrong"}
        return replies.count("right") / len(replies)

    assert await accuracy(0, "say right") == pytest.approx(0.2, abs=0.04)
    assert await accuracy(8, "say right") == pytest.approx(0.6, abs=0.04)
    assert await accuracy(8, "difficulty=0.5: say right") == pytest.approx(0.3, abs=0.04)
    assert await accuracy(50, "say right") == pytest.approx(0.9, abs=0.04)


@pytest.mark.anyio
@pytest.mark.parametrize(("answer", "reply"), [("right", APPROVE), ("wrong", f"Try again. {REJECT}")])
async def test_the_engine_verifies_answers_to_its_questions(answer: str, reply: str) -> None:
    ready = await engine(tokens_per_s=0, first_token_s={"mean": 0}, swap_s=0)

    generation = await request(ready, text=verification_prompt("item 3, difficulty=0.00: say right", answer))

    assert TOKENIZER.decode(generation.tokens) == reply


@pytest.mark.long
@pytest.mark.anyio
async def test_requests_fail_at_the_configured_rate() -> None:
    ready = await engine(tokens_per_s=0, first_token_s={"mean": 0}, swap_s=0, failure_rate=0.25)

    results = await asyncio.gather(*(request(ready, str(number)) for number in range(1000)), return_exceptions=True)

    failures = [result for result in results if isinstance(result, ScriptedFailure)]
    assert len(failures) / 1000 == pytest.approx(0.25, abs=0.05)


@pytest.mark.anyio
async def test_the_same_seed_and_request_get_the_same_answer() -> None:
    at_once: dict[str, Any] = {"tokens_per_s": 0, "first_token_s": {"mean": 0}, "swap_s": 0, "accuracy_start": 0.5}
    at_once["tokens"] = {"mean": 40, "spread": 1.0}

    async def run(seed: int) -> list[list[int]]:
        ready = await engine(seed=seed, **at_once)
        return [(await request(ready, str(number))).tokens.tolist() for number in range(50)]

    assert await run(1) == await run(1)
    assert await run(1) != await run(2)


@pytest.mark.anyio
async def test_an_unusable_prompt_or_model_is_refused() -> None:
    ready = await engine(swap_s=0)

    with raises_code(InvalidInput, "engine.no_cue", "say WORD"):
        await request(ready, text="rev abcd=")
    with raises_code(InvalidInput, "engine.unsupported_model", "'tiny'"):
        engines.build({"kind": "scripted"}, {"kind": "tiny"})
    with raises_code(Unavailable, "engine.no_weights"):
        await engines.build({"kind": "scripted"}, {"kind": "scripted"}).generate(
            "a", np.zeros(1, dtype=np.int32), Sampling(max_new_tokens=1)
        )


@pytest.mark.long
def test_a_node_with_the_scripted_engine_needs_no_torch() -> None:
    code = (
        "import sys, astraflow.raas.service, astraflow.raas.engines.scripted, astraflow.models\n"
        "astraflow.models.build_tokenizer({'kind': 'scripted'})\n"
        "print({'torch', 'transformers', 'tokenizers'} & set(sys.modules))"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=30) == "set()\n"


def begun(text: str, *, silent: int = 0) -> Int32Array:
    """Returns the prompt with the beginning of a reply after it."""
    silence = np.full(silent, TOKENIZER.pad_token, dtype=np.int32)
    return np.concatenate([chat("say right"), silence, TOKENIZER.encode(text)])


async def continued(engine: ScriptedEngine, request_id: str, prompt: Int32Array) -> Generation:
    return await engine.generate(request_id, prompt, make.sampling(10_000))


@pytest.mark.anyio
async def test_a_continued_reply_keeps_its_text_and_length() -> None:
    ready = await engine(first_token_s={"mean": 0}, tokens_per_s=0, swap_s=0)
    whole = await request(ready)
    for length in range(1, len(whole.tokens)):
        rest = await continued(ready, "b", np.concatenate([chat("say right"), whole.tokens[:length]]))
        assert rest.tokens.tolist() == whole.tokens[length:].tolist()


@pytest.mark.anyio
async def test_a_started_word_is_completed_by_an_engine_with_another_answer() -> None:
    wrong = await engine(first_token_s={"mean": 0}, tokens_per_s=0, swap_s=0)
    rest = await continued(wrong, "a", begun("wr"))
    assert TOKENIZER.decode(rest.tokens) == "ong"


@pytest.mark.long
@pytest.mark.anyio
async def test_interrupted_replies_have_the_same_length_distribution() -> None:
    """Cuts each reply once it has `cut` tokens; replies that end earlier are in neither sample."""
    lengths = {"kind": "lognormal", "mean": 40, "spread": 1.0}
    ready = await engine(first_token_s={"mean": 0}, tokens_per_s=0, swap_s=0, tokens=lengths)
    cut, needed = 30, 30 + len("right") + 1
    plain = [len((await request(ready, f"plain {n}", max_new_tokens=10_000)).tokens) for n in range(4000)]
    longer = sorted(length for length in plain if length >= needed)
    resumed = sorted(
        [cut + len((await continued(ready, f"resumed {n}", begun("", silent=cut))).tokens) for n in range(len(longer))]
    )
    places = np.linspace(0.05, 0.95, 10)
    np.testing.assert_allclose(np.quantile(resumed, places), np.quantile(longer, places), rtol=0.12)


@pytest.mark.anyio
async def test_continued_tokens_take_no_time() -> None:
    clock = ManualClock()
    ready = await engine(clock)
    task = asyncio.create_task(continued(ready, "a", begun("", silent=5)))
    await clock.pass_time(1.45)
    assert not task.done()
    await clock.pass_time(0.1)
    assert len(task.result().tokens) == 11 - 5


@pytest.mark.anyio
async def test_replies_change_their_length_at_the_times_of_the_script() -> None:
    clock = ManualClock()
    script = [{"after_s": 10.0, "factor": 2.0}, {"after_s": 20.0, "factor": 0.5}]
    scripted = await engine(clock, length_script=script, script_began_at=clock.wall())
    await scripted.resume()
    factors = []
    for _ in range(3):
        factors.append(scripted.gauges().reply_length)
        await clock.pass_time(10.0)

    assert factors == [1.0, 2.0, 0.5]
    unscripted = await engine(ManualClock(), length_script=script)
    assert unscripted.gauges().reply_length == 1.0, "without a begin, no change takes effect"
    assert (await engine(ManualClock())).gauges().reply_length is None
