from dataclasses import replace

import numpy as np
import pytest

from astraflow.contract.errors import Unavailable
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import Engine
from astraflow.raas.engines.server.installation.verification import MODEL, check_answers
from tests.errors import raises_code


@pytest.fixture
def engine() -> Engine:
    return engines.build({"kind": "local_torch"}, MODEL)


@pytest.mark.anyio
async def test_an_engine_with_consistent_logprobs_passes(engine: Engine) -> None:
    try:
        await engine.start()
        assert await check_answers(engine) < 1e-4
    finally:
        await engine.close()


@pytest.mark.anyio
@pytest.mark.parametrize("fault", ["few tokens", "wrong logprobs", "no numbers"])
async def test_an_engine_with_wrong_answers_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    generate = engine.generate

    async def wrong(request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        if fault == "few tokens":
            return await generate(request_id, prompt, replace(sampling, max_new_tokens=3))
        generation = await generate(request_id, prompt, sampling)
        return replace(
            generation, logprobs=generation.logprobs - (0.1 if fault == "wrong logprobs" else np.float32("nan"))
        )

    monkeypatch.setattr(engine, "generate", wrong)
    try:
        await engine.start()
        with raises_code(Unavailable, "engine.check_failed"):
            await check_answers(engine)
    finally:
        await engine.close()
