"""The local torch engine passes the engine suite, and matches transformers' own forward pass."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config

from astraflow.contract.errors import Conflict, InternalError, InvalidInput, Unavailable
from astraflow.contract.rollouts.expert_columns import decoded_experts
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, joined
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.causal import hidden_states
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import Engine, PauseMode
from astraflow.raas.engines.local import parameters, slots
from astraflow.raas.engines.local.batcher import Predictions
from astraflow.weights.tensors import VerifiedWeights
from tests import make_torch
from tests.errors import raises_code
from tests.suites.serving import serving, within

OTHERS = (
    {"window": 5},
    {"experts": 5},
    {"family": "qwen35"},
    {"family": "gpt_oss"},
    {"family": "falcon_h1"},
    {"family": "lfm2"},
)
"""Options of tiny models with windows, experts, sinks, convolutions and recurrent states."""
PROMPT = np.array([5, 6, 7, 8, 9], dtype=np.int32)


def local(model: Mapping[str, Any] = make_torch.TINY, **options: Any) -> Engine:
    return engines.build({"kind": "local_torch", "seed": 7, **options}, model)


def weights_of(version: int) -> VerifiedWeights:
    return make_torch.published(make_torch.model(seed=version), version)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with serving(local, weights_of(0)) as served:
        yield served


def prompts(count: int, *, seed: int = 0) -> list[Int32Array]:
    """Returns prompts of many lengths, some of them equal."""
    draws = np.random.default_rng(seed)
    distinct = [draws.integers(4, 128, size=draws.integers(1, 30)).astype(np.int32) for _ in range(count)]
    return [distinct[draws.integers(0, count)] for _ in range(count)]


def generated_with(
    engine: Engine, texts: list[Int32Array], sampling: Sampling
) -> list[Coroutine[Any, Any, Generation]]:
    return [engine.generate(f"request-{number}", text, sampling) for number, text in enumerate(texts)]


async def generated(engine: Engine, texts: list[Int32Array], sampling: Sampling) -> list[Generation]:
    return list(await within(asyncio.gather(*generated_with(engine, texts, sampling))))


@pytest.mark.anyio
async def test_the_most_likely_tokens_are_recorded_for_requests_that_ask(engine: Engine) -> None:
    asking = Sampling(max_new_tokens=5, temperature=0.7, top_k=6, top_tokens=8)

    recorded, plain = await within(
        asyncio.gather(
            engine.generate("asking", PROMPT, asking), engine.generate("other", PROMPT, Sampling(max_new_tokens=5))
        )
    )

    assert not plain.columns
    tokens, logprobs = (recorded.columns[kind] for kind in (TokenColumn.TOP_TOKENS, TokenColumn.TOP_LOGPROBS))
    assert tokens.shape == logprobs.shape == (len(recorded.tokens), 8)
    for position, (token, logprob) in enumerate(zip(recorded.tokens, recorded.logprobs, strict=True)):
        assert np.isfinite(logprobs[position]).sum() == 6  # the others cannot be sampled
        assert logprobs[position, tokens[position] == token] == pytest.approx(logprob, abs=2e-3)
    np.testing.assert_allclose(np.exp(logprobs.astype(np.float64)).sum(1), 1, atol=2e-3)


@pytest.mark.anyio
@pytest.mark.parametrize("family", ["qwen3", "qwen35", "gpt_oss"])
async def test_experts_are_those_that_predicted_each_token(family: str) -> None:
    spec = {**make_torch.TINY, "family": family, "experts": 5, "experts_per_token": 2, "heads": 4}
    model = make_torch.model(spec=spec)
    chosen: list[torch.Tensor] = []
    for block in model.model.layers:
        gate = block.mlp.router if family == "gpt_oss" else block.mlp.gate
        gate.register_forward_hook(lambda _module, _inputs, output: chosen.append(output[2]))
    texts = prompts(6)
    async with serving(lambda: local(spec), make_torch.published(model)) as engine:
        generations = await generated(engine, texts, Sampling(max_new_tokens=7, experts=True))
        turn = np.concatenate([texts[0], generations[0].tokens, texts[1]])
        texts, generations = (
            [*texts, turn],
            [*generations, await engine.generate("turn", turn, Sampling(max_new_tokens=3, experts=True))],
        )
    for text, generation in zip(texts, generations, strict=True):
        chosen.clear()
        model(torch.from_numpy(np.concatenate([text, generation.tokens]).astype(np.int64))[None])
        expected = torch.stack([layer.sort(-1).values for layer in chosen], 1)[len(text) - 1 : -1]
        recorded = decoded_experts(generation.columns[TokenColumn.EXPERTS], Mixture(layers=2, chosen=2, experts=5))
        np.testing.assert_array_equal(np.sort(recorded, -1), expected)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "filters", [{"top_p": 0.9}, {"top_k": 6}, {"min_p": 0.5}, {"top_p": 0.5, "top_k": 40, "min_p": 0.1}], ids=str
)
async def test_logprobs_are_those_of_a_plain_forward_pass_over_the_recorded_kept_sets(
    engine: Engine, filters: dict[str, Any]
) -> None:
    asking = Sampling(max_new_tokens=12, temperature=0.7, **filters).recording_support()
    texts = prompts(6)

    generations = await generated(engine, texts, asking)

    for text, generation in zip(texts, generations, strict=True):
        assert generation.has_support
        whole = torch.from_numpy(np.concatenate([text, generation.tokens]).astype(np.int64))
        logits = make_torch.model(0)(whole[None]).logits[0, len(text) - 1 : -1].detach().double() / 0.7
        for position, kept in enumerate(generation.columns[TokenColumn.SUPPORT]):
            ids = torch.from_numpy(kept[kept >= 0].astype(np.int64))
            assert 1 <= len(set(ids.tolist())) == len(ids) <= asking.top_k
            left = torch.ones(logits.shape[-1], dtype=torch.bool).index_fill_(0, ids, False)
            assert logits[position, left].max() <= logits[position, ids].min()
            logprob = logits[position, generation.tokens[position]] - logits[position, ids].logsumexp(0)
            assert float(logprob) == pytest.approx(generation.logprobs[position], abs=1e-5)


@pytest.mark.long
@pytest.mark.anyio
async def test_logprobs_match_a_plain_forward_pass_under_concurrency(engine: Engine) -> None:
    texts = prompts(40)

    generations = await generated(engine, texts, Sampling(max_new_tokens=12))

    for text, generation in zip(texts, generations, strict=True):
        whole = np.concatenate([text, generation.tokens])
        expected = make_torch.logprobs(make_torch.model(0), whole, len(text))
        np.testing.assert_allclose(generation.logprobs, expected, atol=1e-5)


@pytest.mark.anyio
@pytest.mark.parametrize("option", OTHERS, ids=str)
async def test_other_architectures_have_the_logprobs_of_a_plain_forward(option: dict[str, Any]) -> None:
    spec = {**make_torch.TINY, **option}
    model = make_torch.model(0, spec)
    texts = prompts(20)

    async with serving(lambda: local(model=spec), make_torch.published(model)) as served:
        generations = await generated(served, texts, Sampling(max_new_tokens=12))

    for text, generation in zip(texts, generations, strict=True):
        whole = np.concatenate([text, generation.tokens])
        np.testing.assert_allclose(generation.logprobs, make_torch.logprobs(model, whole, len(text)), atol=1e-5)


@pytest.mark.anyio
@pytest.mark.parametrize("option", [{}, *OTHERS[:3]], ids=str)
async def test_turns_of_conversations_compute_their_new_tokens_only(
    option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {**make_torch.TINY, **option}
    model = make_torch.model(0, spec)
    draws, computed = np.random.default_rng(1), list[int]()

    def counted(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        computed.append(ids.numel())
        return hidden_states(model, ids, **options)

    monkeypatch.setattr(slots, "hidden_states", counted)
    beginning = draws.integers(4, 128, size=150).astype(np.int32)
    texts = [np.concatenate([beginning, text]) for text in prompts(12)]

    async with serving(lambda: local(model=spec, prefill_tokens=4096), make_torch.published(model)) as served:
        for turn in range(3):
            generations = await generated(served, texts, Sampling(max_new_tokens=12))
            for at, (text, generation) in enumerate(zip(texts, generations, strict=True)):
                whole = np.concatenate([text, generation.tokens])
                expected = make_torch.logprobs(model, whole, len(text))
                np.testing.assert_allclose(generation.logprobs, expected, atol=1e-5)
                reply = draws.integers(4, 128, size=draws.integers(1, 40)).astype(np.int32)
                texts[at] = np.concatenate([whole, reply])
            if turn:
                assert sum(computed) < 12 * (12 + 60), "the beginnings were computed again"
            computed.clear()


@pytest.mark.anyio
async def test_a_turn_after_a_weight_update_is_of_the_new_version(engine: Engine) -> None:
    text = np.tile(PROMPT, 8)
    first = await engine.generate("a", text, Sampling(max_new_tokens=12))
    await engine.load(weights_of(1))
    text = np.concatenate([text, first.tokens, PROMPT])
    second = await engine.generate("b", text, Sampling(max_new_tokens=12))

    expected = make_torch.logprobs(make_torch.model(1), np.concatenate([text, second.tokens]), len(text))
    np.testing.assert_allclose(second.logprobs, expected, atol=1e-5)


@pytest.mark.anyio
async def test_experts_of_a_dense_model_are_refused(engine: Engine) -> None:
    with raises_code(InvalidInput, "engine.unsupported_sampling", "experts"):
        await engine.generate("a", PROMPT, Sampling(max_new_tokens=5, experts=True))


@pytest.mark.anyio
@pytest.mark.parametrize("option", [{"top_k": -1}, {"min_p": -0.1}, {"min_p": 1.1}])
async def test_sampling_options_out_of_range_are_refused(engine: Engine, option: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "engine.invalid_sampling"):
        await engine.generate("a", PROMPT, Sampling(max_new_tokens=5, **option))


@pytest.mark.anyio
async def test_a_seed_gives_the_same_tokens_in_any_engine_and_batch(engine: Engine) -> None:
    seeded = Sampling(max_new_tokens=12, seed=-5)
    (alone,) = await generated(engine, [PROMPT], seeded)
    async with serving(lambda: local(seed=99), weights_of(0)) as another:
        crowd = await asyncio.gather(
            *generated_with(another, prompts(10), Sampling(max_new_tokens=12)), another.generate("b", PROMPT, seeded)
        )

    assert crowd[-1].tokens.tolist() == alone.tokens.tolist()


@pytest.mark.long
@pytest.mark.anyio
async def test_a_stop_string_of_several_tokens_ends_a_generation(engine: Engine) -> None:
    seeded = Sampling(max_new_tokens=40, seed=1)
    (whole,) = await generated(engine, [PROMPT], seeded)
    stop = models.build(make_torch.TINY).tokenizer().decode(whole.tokens[10:13], keep_special_tokens=True)
    (cut,) = await generated(engine, [PROMPT], replace(seeded, stop_strings=("no such text", stop)))

    assert cut.tokens.tolist() == whole.tokens[:13].tolist()
    assert cut.finish is Finish.STOP
    np.testing.assert_allclose(cut.logprobs, whole.logprobs[:13], atol=1e-5)  # the distribution is not cut


@pytest.mark.long
@pytest.mark.anyio
async def test_scores_match_a_plain_forward_pass(engine: Engine) -> None:
    texts = [text for text in prompts(30) if len(text) > 2]

    scores = await within(asyncio.gather(*(engine.score(text, 2) for text in texts)))

    for text, logprobs in zip(texts, scores, strict=True):
        np.testing.assert_allclose(logprobs, make_torch.logprobs(make_torch.model(0), text, 2), atol=1e-5)


@pytest.mark.anyio
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [LlamaConfig, Qwen2Config])
async def test_other_architectures_and_attention_implementations_match_a_plain_forward_pass(
    config: Callable[..., PretrainedConfig], attention: str, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = AutoModelForCausalLM.from_config(config(vocab_size=128, num_key_value_heads=2, eos_token_id=3, **sizes))
    model.save_pretrained(tmp_path)
    engine = engines.build(
        {"kind": "local_torch"}, {"kind": "huggingface", "path": str(tmp_path), "attention": attention}
    )
    texts = prompts(10)
    await engine.load(make_torch.published(model, dtype=Dtype.FLOAT32))

    generations = await generated(engine, texts, Sampling(max_new_tokens=8))

    await engine.close()
    for text, generation in zip(texts, generations, strict=True):
        expected = make_torch.logprobs(model.eval(), np.concatenate([text, generation.tokens]), len(text))
        np.testing.assert_allclose(generation.logprobs, expected, atol=1e-5)


@pytest.mark.anyio
async def test_excess_requests_wait_for_a_slot() -> None:
    async with serving(lambda: local(max_sequences=4, cache_tokens=128, prefill_tokens=16), weights_of(0)) as engine:
        texts = prompts(25)

        generations = await generated(engine, texts, Sampling(max_new_tokens=9))

        assert all(len(generation.tokens) == 9 for generation in generations)
        whole = np.concatenate([texts[3], generations[3].tokens])
        expected = make_torch.logprobs(make_torch.model(0), whole, len(texts[3]))
        np.testing.assert_allclose(generations[3].logprobs, expected, atol=1e-5)


@pytest.mark.long
@pytest.mark.anyio
async def test_a_seeded_engine_gives_the_same_tokens_alone_and_in_a_batch() -> None:
    texts, sampling = prompts(20), Sampling(max_new_tokens=15, temperature=0.7)
    async with serving(local, weights_of(0)) as engine:
        together = await generated(engine, texts, sampling)
    async with serving(local, weights_of(0)) as engine:
        alone = await engine.generate("request-11", texts[11], sampling)

    np.testing.assert_array_equal(alone.tokens, together[11].tokens)


@pytest.mark.long
@pytest.mark.anyio
async def test_a_continued_answer_has_the_logprobs_of_an_uninterrupted_one() -> None:
    """Compares each part of an answer begun with one version and continued with another to its own version."""
    texts, sampling = prompts(12), Sampling(max_new_tokens=200)
    async with serving(local, weights_of(0)) as engine:
        running = [asyncio.create_task(engine.generate(f"r-{n}", text, sampling)) for n, text in enumerate(texts)]
        await asyncio.sleep(0.05)  # the engine generates in its own thread
        await asyncio.gather(*(engine.abort(f"r-{n}") for n in range(len(texts))))
        beginnings = await within(asyncio.gather(*running))
    assert any(len(beginning.tokens) for beginning in beginnings)
    async with serving(local, weights_of(1)) as another:
        for text, beginning in zip(texts, beginnings, strict=True):
            so_far = np.concatenate([text, beginning.tokens])
            rest = await another.generate("rest", so_far, Sampling(max_new_tokens=20))
            whole = joined(beginning, rest)

            tokens = np.concatenate([text, whole.tokens])
            by_first = make_torch.logprobs(make_torch.model(0), so_far, len(text))
            by_second = make_torch.logprobs(make_torch.model(1), tokens, len(so_far))
            np.testing.assert_allclose(whole.logprobs, np.concatenate([by_first, by_second]), atol=1e-5)
            np.testing.assert_allclose(rest.logprobs, await another.score(tokens, len(so_far)), atol=1e-5)
            assert [span.version for span in whole.spans] == ([0, 1] if len(beginning.tokens) else [1])


@pytest.mark.anyio
async def test_the_narrowest_truncation_gives_the_most_likely_tokens(engine: Engine) -> None:
    narrow = (Sampling(max_new_tokens=8, top_k=1), Sampling(max_new_tokens=8, min_p=1.0))

    by_rank, by_share = [(await generated(engine, [PROMPT], sampling))[0].tokens.tolist() for sampling in narrow]

    assert by_rank == by_share


@pytest.mark.anyio
async def test_requests_for_one_prompt_get_different_answers(engine: Engine) -> None:
    generations = await generated(engine, [PROMPT] * 8, Sampling(max_new_tokens=10))

    assert len({generation.tokens.tobytes() for generation in generations}) == 8


@pytest.mark.anyio
async def test_a_stop_token_ends_a_generation_and_is_part_of_it(engine: Engine) -> None:
    free = await engine.generate("a", PROMPT, Sampling(max_new_tokens=20))
    stop = int(free.tokens[4])
    first = free.tokens.tolist().index(stop)

    stopped = await engine.generate("a", PROMPT, Sampling(max_new_tokens=20, stop_tokens=(stop,)))

    assert stopped.finish is Finish.STOP
    assert stopped.tokens.tolist() == free.tokens[: first + 1].tolist()


@pytest.mark.anyio
async def test_temperature_zero_selects_the_best_token_with_logprob_zero(engine: Engine) -> None:
    cold = await engine.generate("a", PROMPT, Sampling(max_new_tokens=1, temperature=0.0))

    with torch.no_grad():
        logits = make_torch.model(0)(input_ids=torch.from_numpy(PROMPT.astype(np.int64))[None]).logits[0, -1]
    assert cold.tokens[0] == int(logits.argmax())
    assert cold.logprobs[0] == 0.0


@pytest.mark.long
@pytest.mark.anyio
async def test_a_patch_and_a_full_transfer_lead_to_the_same_weights() -> None:
    first, second = weights_of(0), weights_of(1)
    patch = make_torch.published(make_torch.model(1), 1, base=first)
    text = prompts(1)[0]
    text = np.tile(text, 3)
    async with serving(local, first) as engine:
        before = await engine.score(text, 1)
        await engine.load(patch)
        patched = await engine.score(text, 1)
    async with serving(local, second) as engine:
        full = await engine.score(text, 1)

    np.testing.assert_array_equal(patched, full)
    assert np.abs(before - patched).max() > 1e-3


@pytest.mark.long
@pytest.mark.anyio
async def test_generations_running_at_a_weight_update_resume_after_the_pause(engine: Engine) -> None:
    idle = await within(engine.load(weights_of(1)))
    running = [asyncio.create_task(engine.generate(f"r-{n}", PROMPT, Sampling(max_new_tokens=400))) for n in range(8)]
    await asyncio.sleep(0.1)  # the engine generates in its own thread
    busy = await within(engine.load(weights_of(2)))
    await within(asyncio.gather(*running))

    assert busy.resume_s > idle.resume_s, "eight prompts were recomputed"
    assert min(idle.stage_s, idle.apply_s, busy.stage_s, busy.apply_s) > 0


@pytest.mark.long
@pytest.mark.anyio
async def test_a_delta_from_an_unserved_version_is_loaded_in_full() -> None:
    patch = make_torch.published(make_torch.model(2), 2, base=weights_of(1))
    async with serving(local, weights_of(0)) as engine:
        await engine.load(patch)
        logprobs = await engine.score(PROMPT, 1)

    np.testing.assert_allclose(logprobs, make_torch.logprobs(make_torch.model(2), PROMPT, 1), atol=1e-5)


@pytest.mark.long
@pytest.mark.anyio
async def test_tokens_after_a_weight_update_have_logprobs_of_the_new_version(engine: Engine) -> None:
    running = asyncio.create_task(engine.generate("a", PROMPT, Sampling(max_new_tokens=300)))
    await asyncio.sleep(0.05)
    await engine.load(weights_of(1))
    generation = await within(running)

    whole = np.concatenate([PROMPT, generation.tokens])
    begin = 0
    for span in generation.spans:
        part = slice(begin, begin + span.length)
        expected = make_torch.logprobs(make_torch.model(seed=span.version), whole, len(PROMPT))
        np.testing.assert_allclose(generation.logprobs[part], expected[part], atol=1e-5)
        begin += span.length


@pytest.mark.anyio
async def test_a_score_during_a_weight_update_is_of_one_version(engine: Engine) -> None:
    text = np.tile(PROMPT, 60)
    scoring = asyncio.create_task(engine.score(text, 1))
    await asyncio.sleep(0.03)
    await engine.load(weights_of(1))

    np.testing.assert_allclose(await within(scoring), make_torch.logprobs(make_torch.model(1), text, 1), atol=1e-4)


@pytest.mark.anyio
async def test_weights_of_another_model_are_refused_and_the_old_ones_stay(engine: Engine) -> None:
    other = models.build({**make_torch.TINY, "layers": 1}).architecture()

    with raises_code(InvalidInput, "weights.model_mismatch", "'model.layers.1") as caught:
        await engine.load(make_torch.published(other, 1))
    assert caught.value.code == "weights.model_mismatch"

    assert engine.version == 0
    assert len(await engine.score(PROMPT, 1)) == 4


@pytest.mark.anyio
async def test_generation_ends_at_the_context_length(engine: Engine) -> None:
    generation = await within(engine.generate("a", np.tile(PROMPT, 100), Sampling(max_new_tokens=100)))

    assert len(generation.tokens) == 12
    assert generation.finish is Finish.LENGTH


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        (np.empty(0, dtype=np.int32), Sampling(max_new_tokens=1), "0 tokens"),
        (np.tile(PROMPT, 103), Sampling(max_new_tokens=1), "515 tokens"),
        (np.array([128], dtype=np.int32), Sampling(max_new_tokens=1), "0 to 127"),
        (PROMPT, Sampling(max_new_tokens=0), "max_new_tokens >= 1"),
        (PROMPT, Sampling(max_new_tokens=1, top_p=0.0), "0 < top_p"),
        (PROMPT, Sampling(max_new_tokens=1, temperature=-1.0), "temperature >= 0"),
    ],
)
async def test_impossible_requests_are_refused_with_the_reason(
    engine: Engine, prompt: Int32Array, sampling: Sampling, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        await engine.generate("a", prompt, sampling)


@pytest.mark.anyio
async def test_two_requests_with_one_id_are_refused(engine: Engine) -> None:
    running = asyncio.create_task(engine.generate("a", PROMPT, Sampling(max_new_tokens=50)))
    await asyncio.sleep(0)

    with raises_code(Conflict, "engine.duplicate_request", "'a'"):
        await engine.generate("a", PROMPT, Sampling(max_new_tokens=1))

    await within(running)


@pytest.mark.anyio
async def test_a_failed_step_fails_all_its_requests_and_later_ones_are_served(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no room for keys")

    with monkeypatch.context() as broken:
        broken.setattr("astraflow.raas.engines.local.batcher.logits_at", fail)
        outcomes = await within(
            asyncio.gather(
                *(engine.generate(f"{n}", PROMPT, Sampling(max_new_tokens=5)) for n in range(3)), return_exceptions=True
            )
        )

    assert [type(outcome) for outcome in outcomes] == [MemoryError] * 3
    assert len((await within(engine.generate("a", PROMPT, Sampling(max_new_tokens=5)))).tokens) == 5


@pytest.mark.anyio
@pytest.mark.parametrize("fails", [0, 1], ids=["without a prefix", "with a prefix"])
async def test_a_failed_prefill_loses_no_other_request(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """Two requests that join together: one continues an earlier text, so that it is prefilled after the other."""
    text = np.tile(PROMPT, 8)
    await within(engine.generate("warm", text, Sampling(max_new_tokens=8)))
    prefill, began = slots.SlotBatcher._prefill, count()

    def failing(self: slots.SlotBatcher, first: int, joining: list[Any]) -> Predictions:
        if next(began) == fails:
            raise MemoryError("no room for keys")
        return prefill(self, first, joining)

    monkeypatch.setattr(slots.SlotBatcher, "_prefill", failing)
    requests = [
        engine.generate("new", PROMPT[::-1].copy(), Sampling(max_new_tokens=1)),
        engine.generate("next", np.concatenate([text, PROMPT]), Sampling(max_new_tokens=1)),
    ]
    outcomes = await within(asyncio.gather(*requests, return_exceptions=True))

    assert isinstance(outcomes[fails], MemoryError)
    other = outcomes[1 - fails]
    assert isinstance(other, Generation)
    assert len(other.tokens) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("option", [{"temperature": 0.0}, {"top_p": 1e-6}])
async def test_greedy_sampling_has_certain_tokens(engine: Engine, option: dict[str, float]) -> None:
    (generation,) = await generated(engine, [PROMPT], Sampling(max_new_tokens=5, **option))  # type: ignore[arg-type]
    np.testing.assert_allclose(generation.logprobs, np.zeros(5), atol=1e-5)


@pytest.mark.anyio
async def test_weights_that_are_not_finite_are_refused_at_the_first_load() -> None:
    broken = make_torch.model(0)
    broken.get_parameter("model.norm.weight").data.fill_(torch.nan)
    engine = local()

    with raises_code(InvalidInput, "engine.inexact_model"):
        await engine.load(make_torch.published(broken, 0))

    assert engine.version is None
    await engine.close()


@pytest.mark.anyio
async def test_later_weights_that_are_not_finite_fail_generation(engine: Engine) -> None:
    broken = make_torch.model(0)
    broken.get_parameter("model.norm.weight").data.fill_(torch.nan)
    await engine.load(make_torch.published(broken, 1))

    with raises_code(InternalError, "engine.non_finite_logits"):
        await engine.generate("a", PROMPT, Sampling(max_new_tokens=5))


@pytest.mark.anyio
async def test_a_failed_swap_leaves_no_version_and_fails_requests_until_the_next_load(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(staged: list[Any], *, threads: int = 1) -> list[torch.Tensor]:
        parameters.swap(staged[:1], threads=threads)
        raise MemoryError("no room for a tensor")

    running = asyncio.create_task(engine.generate("a", PROMPT, Sampling(max_new_tokens=400)))
    await asyncio.sleep(0)
    with monkeypatch.context() as broken:
        broken.setattr("astraflow.raas.engines.local_torch.swap", fail)
        with pytest.raises(MemoryError):
            await within(engine.load(weights_of(1)))

    assert engine.version is None
    with raises_code(Unavailable, "engine.no_weights"):
        await within(running)
    with raises_code(Unavailable, "engine.no_weights"):
        await engine.generate("b", PROMPT, Sampling(max_new_tokens=5))
    await within(engine.load(weights_of(2)))
    later = await within(engine.generate("c", PROMPT, Sampling(max_new_tokens=5)))
    expected = make_torch.logprobs(make_torch.model(2), np.concatenate([PROMPT, later.tokens]), len(PROMPT))
    np.testing.assert_allclose(later.logprobs, expected, atol=1e-5)


@pytest.mark.anyio
async def test_requests_that_arrive_during_a_load_wait_for_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    may_swap, swapping = threading.Event(), threading.Event()

    def slow(staged: list[Any], *, threads: int = 1) -> list[torch.Tensor]:
        swapping.set()
        may_swap.wait()
        return parameters.swap(staged, threads=threads)

    monkeypatch.setattr("astraflow.raas.engines.local_torch.swap", slow)
    loading = asyncio.create_task(engine.load(weights_of(1)))
    await asyncio.to_thread(swapping.wait)
    requests = [
        asyncio.create_task(engine.generate(str(number), PROMPT, Sampling(max_new_tokens=2))) for number in range(3)
    ]
    await asyncio.sleep(0)
    may_swap.set()
    await within(loading)

    assert [(await within(request)).spans[0].version for request in requests] == [1, 1, 1]


@pytest.mark.anyio
async def test_closing_ends_the_thread_and_refuses_later_requests() -> None:
    before = set(threading.enumerate())
    async with serving(local, weights_of(0)) as engine:
        assert any(thread.name == "local_torch" for thread in threading.enumerate())

    left = {thread.name for thread in threading.enumerate() if thread not in before}
    assert all(name.startswith("asyncio_") for name in left), "only the thread pool of asyncio has threads left"
    with raises_code(Unavailable, "engine.closed", "closed"):
        await engine.generate("a", PROMPT, Sampling(max_new_tokens=1))
    await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_queued_requests_survive_a_keeping_pause_and_end_with_an_aborting_one() -> None:
    async with serving(lambda: local(max_sequences=1), weights_of(0)) as engine:
        texts = [PROMPT] * 3
        kept = asyncio.create_task(generated(engine, texts, Sampling(max_new_tokens=100)))
        await asyncio.sleep(0.02)
        await engine.pause(PauseMode.KEEP)
        await engine.resume()
        assert all(generation.finish is Finish.LENGTH for generation in await within(kept))

        cut = asyncio.create_task(generated(engine, texts, Sampling(max_new_tokens=400)))
        await asyncio.sleep(0.02)
        await engine.pause(PauseMode.ABORT)
        generations = await within(cut)
        assert [generation.finish for generation in generations] == [Finish.ABORT] * 3
        assert len(generations[2].tokens) == 0
