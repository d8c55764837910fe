"""Rounded weights: few levels by group, exact heads, and an engine that serves them with a tolerance of their own."""

import numpy as np
import pytest
import torch

from astraflow.contract.rollouts.generation import Sampling
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import COARSE
from astraflow.raas.engines.local.coarse import Coarsening, coarse
from astraflow.raas.engines.logprob_mismatch import compare_logprobs
from tests import make_torch
from tests.suites.serving import serving, within

PROMPT = np.array([5, 6, 7, 8, 9], dtype=np.int32)


@pytest.mark.parametrize(("levels", "largest"), [(7, 1 / 14), (127, 1 / 254)])
def test_a_weight_is_off_by_at_most_half_a_level_of_its_group(levels: int, largest: float) -> None:
    weights = torch.randn(6, 70, generator=torch.Generator().manual_seed(0))
    rounded = coarse(weights, levels)
    for begin in range(0, 70, 32):
        group, own = weights[:, begin : begin + 32], rounded[:, begin : begin + 32]
        scale = group.abs().amax(1, keepdim=True)
        assert float(((group - own).abs() / scale).max()) <= largest * 1.001
        assert len({round(float(value), 4) for value in (own / scale * levels)[0]}) <= 2 * levels + 1
    torch.testing.assert_close(coarse(rounded, levels), rounded)
    assert not coarse(torch.zeros(2, 5), levels).any()


def test_head_and_embeddings_stay_exact() -> None:
    model = make_torch.model()
    coarsening = Coarsening(model, "int4")
    assert not coarsening.is_exact
    assert id(model.get_input_embeddings().weight) not in coarsening._rounded
    assert len(coarsening._rounded) == 7 * model.config.num_hidden_layers
    assert Coarsening(model, "exact").is_exact


@pytest.mark.anyio
async def test_the_engine_serves_rounded_weights_after_each_load() -> None:
    def coarse_engine() -> object:
        return engines.build({"kind": "local_torch", "seed": 7, "weights": "int4"}, make_torch.TINY)

    first, second = (make_torch.published(make_torch.model(seed=seed), seed) for seed in (0, 1))
    async with serving(coarse_engine, first) as engine:  # type: ignore[arg-type]
        assert engine.logprob_tolerance is COARSE
        assert engine.logprob_tolerance.precision == "weights of few bits"
        for weights, seed in ((first, 0), (second, 1)):
            await within(engine.load(weights))
            generation = await within(engine.generate(f"request-{seed}", PROMPT, Sampling(max_new_tokens=12)))
            text = np.concatenate([PROMPT, generation.tokens])
            exact = make_torch.logprobs(make_torch.model(seed=seed), text, len(PROMPT))
            mismatch = compare_logprobs(generation.logprobs, exact)
            assert 1e-4 < mismatch.mean < 0.5
            rounded = make_torch.model(seed=seed)
            for name, weight in rounded.named_parameters():
                if weight.ndim == 2 and "embed" not in name:
                    weight.data = coarse(weight.data.bfloat16().float(), 7)
            expected = make_torch.logprobs(rounded, text, len(PROMPT))
            np.testing.assert_allclose(generation.logprobs, expected, atol=1e-3)
