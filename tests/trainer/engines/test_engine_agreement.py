"""Engine and trainer compute the same logprobs from the same weights, whatever the layers of the model are."""

import asyncio

import numpy as np
import pytest
import torch

from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.weights import Dtype
from astraflow.raas.engines import engines
from astraflow.trainer.engines.scoring.choice import choose_batching
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.step.packing import pack_sequences
from tests import make_torch
from tests.suites.serving import serving, within


@pytest.mark.anyio
@pytest.mark.parametrize("family", ["qwen3", "qwen35", "gpt_oss"])
async def test_sampled_tokens_have_the_logprobs_that_the_trainer_computes(family: str) -> None:
    spec = {**make_torch.TINY, "family": family, "initializer_std": 0.2}
    model = make_torch.model(0, spec)
    prompts = [np.arange(4, 4 + length, dtype=np.int32) for length in (5, 5, 5, 17, 9)]
    async with serving(
        lambda: engines.build({"kind": "local_torch", "seed": 1}, spec),
        make_torch.published(model, dtype=Dtype.FLOAT32),
    ) as engine:
        sampling = Sampling(max_new_tokens=12)
        requests = (engine.generate(str(number), prompt, sampling) for number, prompt in enumerate(prompts))
        generations = await within(asyncio.gather(*requests))

    sequences = [
        np.concatenate([prompt, generation.tokens]).astype(np.int64)
        for prompt, generation in zip(prompts, generations, strict=True)
    ]
    scorer = Scorer(model, torch.device("cpu"))
    choose_batching(scorer, setting="")
    scores = scorer(scorer.inputs(pack_sequences(sequences, [len(prompt) for prompt in prompts])))

    sampled = np.concatenate([generation.logprobs for generation in generations])
    np.testing.assert_allclose(scores.logprobs.detach().numpy(), sampled, rtol=0, atol=1e-5)
