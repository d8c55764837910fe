"""A teacher behind a server gives the same step as the same teacher in the trainer."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web

from astraflow.algorithms.config import AlgorithmConfig, TeacherEndpointConfig
from astraflow.contract.errors import AstraFlowError, InvalidInput, NotAuthenticated, Unavailable
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.trainer.backends import backends
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.runner import StepPlanner
from astraflow.trainer.step.shares import Share
from astraflow.trainer.step.teacher_endpoint import TeacherEndpoint
from tests import make_torch
from tests.errors import raises_code
from tests.fakes.completions_server import CompletionsServer, logprob
from tests.snapshots import Snapshot, snapshot_of
from tests.trainer.backends.test_local import batch

pytestmark = pytest.mark.anyio

TINY = {**make_torch.TINY, "seed": 0}
TEACHER = {**make_torch.TINY, "seed": 1}


class TeacherServer(CompletionsServer):
    """Serves the logprobs of a real model."""

    def __init__(self) -> None:
        super().__init__()
        self._model = models.build(TEACHER).architecture()

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Returns the logprobs of all tokens but the first."""
        return list(make_torch.logprobs(self._model, np.array(tokens), 1).tolist())


def endpoint(server: CompletionsServer, **changes: Any) -> TeacherEndpointConfig:
    return TeacherEndpointConfig(**{"base_url": server.url, "model": "policy"} | changes)


def step(**teacher: Any) -> tuple[Snapshot, Mapping[str, float]]:
    """Returns the weights after a step of distillation, and its metrics.

    With a large epsilon, AdamW moves in proportion to the gradient instead of amplifying rounding of small ones.
    """
    algorithm = {"advantages": [], "token_advantages": [{"kind": "distillation"}], "max_mismatch": None, **teacher}
    options = {"learning_rate": 1.0, "epsilon": 1.0, "grad_clip": 1e9, "weights_dtype": "float32"}
    backend = backends.build({"kind": "local", **options}, TINY, algorithm, seed=0)
    metrics = backend.step(batch())
    return snapshot_of(backend), metrics


async def test_a_teacher_behind_a_server_gives_the_step_of_the_same_teacher_in_the_trainer() -> None:
    async with TeacherServer().serving() as server:
        remote, metrics = await asyncio.to_thread(step, teacher_endpoint=endpoint(server).model_dump())
    own, _ = await asyncio.to_thread(step, teacher=TEACHER)

    initial = {
        name: weight.detach().numpy() for name, weight in named_weights(models.build(TINY).architecture()).items()
    }
    for name, (_, shape, bits) in own.tensors.items():
        change = bits.view("<f4").reshape(shape) - initial[name]
        remote_change = remote.tensors[name][2].view("<f4").reshape(shape) - initial[name]
        assert np.abs(change).max() > 0, name
        np.testing.assert_allclose(remote_change, change, atol=1e-4 * np.abs(change).max(), err_msg=name)
    assert metrics["teacher_s"] > 0


async def test_each_rank_gets_the_logprobs_of_its_own_tokens() -> None:
    async with CompletionsServer().serving() as server:
        planner = StepPlanner(
            AlgorithmConfig(minibatches=2),
            data_ranks=2,
            micro_batch_tokens=40,
            cost=ForwardCost.of_model(make_torch.model()),
            teacher=TeacherEndpoint(endpoint(server)),
        )
        plan = await asyncio.to_thread(planner.plan, batch())

    for share in plan.shares:
        packs = [pack for part in share.optimizer_batches for pack in part.packs]
        before = torch.cat([pack.input_ids[pack.predictors] for pack in packs]).tolist()
        targets = torch.cat([pack.targets for pack in packs]).tolist()
        expected = [logprob(first, second, 0) for first, second in zip(before, targets, strict=True)]
        sent = Share.decode(*share.encode())
        for logprobs in (share.teacher_logprobs, sent.teacher_logprobs):
            assert logprobs is not None
            assert logprobs.tolist() == pytest.approx(expected)


async def test_a_server_that_is_overloaded_for_a_while_costs_time_only() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=503, headers={"Retry-After": "0"})

    server = CompletionsServer()
    server.faults.extend([refuse] * 3)
    trajectory = batch().rows[0].trajectory
    async with server.serving():
        teacher = TeacherEndpoint(endpoint(server, attempts=4))
        scores = await asyncio.to_thread(teacher.logprobs, {7: trajectory})

    assert scores[7].tolist() == pytest.approx(server.score(trajectory.tokens[5:].tolist()))


@pytest.mark.parametrize(
    ("code", "error", "changes"),
    [
        ("engine.unknown_model", InvalidInput, {"model": "other"}),
        ("engine.key_refused", NotAuthenticated, {"key_variable": "ASTRAFLOW_TEACHER_KEY"}),
        ("engine.unreachable", Unavailable, {"base_url": "http://127.0.0.1:9"}),
        ("engine.key_missing", InvalidInput, {"key_variable": "ASTRAFLOW_TEACHER_KEY_2"}),
    ],
)
async def test_a_server_that_cannot_be_used_stops_the_trainer_at_its_start(
    code: str, error: type[AstraFlowError], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TEACHER_KEY", "wrong")
    server = CompletionsServer()
    server.key = "right" if "key_variable" in changes else ""
    async with server.serving():
        algorithm = AlgorithmConfig(teacher_endpoint=endpoint(server, attempts=1, **changes))
        with raises_code(error, code):
            await asyncio.to_thread(TeacherEndpoint.of, algorithm, vocabulary=50)
