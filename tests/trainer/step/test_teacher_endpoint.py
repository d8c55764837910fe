"""A teacher behind a server gives the same step as the same teacher in the trainer."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web

from astraflow.algorithms.config import AlgorithmConfig, TeacherEndpointConfig
from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput, NotAuthenticated, Unavailable
from astraflow.models import build_tokenizer, models
from astraflow.models.causal import named_weights
from astraflow.trainer.backends import backends
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.shares import Share
from astraflow.trainer.step.teacher_endpoint import TeacherEndpoint
from tests import make_torch
from tests.errors import raises_code
from tests.fakes.completions_server import VOCABULARY, CompletionsServer, logprob
from tests.snapshots import Snapshot, snapshot_of
from tests.trainer.backends.test_local import batch

pytestmark = pytest.mark.anyio

TINY = {**make_torch.TINY, "seed": 0}
TEACHER = {**make_torch.TINY, "seed": 1}
TOKENIZER = build_tokenizer(TINY)


class TeacherServer(CompletionsServer):
    """Serves the logprobs of a real model."""

    def __init__(self) -> None:
        super().__init__()
        self._model = models.build(TEACHER).architecture()

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Returns the logprobs of all tokens but the first."""
        return list(make_torch.logprobs(self._model, np.array(tokens), 1).tolist())

    def tops(self, tokens: Sequence[int], count: int) -> list[dict[Any, Any] | None]:
        """Returns the most likely tokens in place of all tokens but the first."""
        with torch.no_grad():
            logits = self._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1]
        top = logits.float().log_softmax(-1).topk(count, -1)
        return [
            dict(zip(ids, values, strict=True))
            for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]


def endpoint(server: CompletionsServer, **changes: Any) -> TeacherEndpointConfig:
    return TeacherEndpointConfig(**{"base_url": server.url, "model": "policy"} | changes)


LOSSES: list[dict[str, Any]] = [
    {"token_advantages": [{"kind": "distillation"}]},
    {"loss": {"kind": "distillation", "teacher_tokens": 3, "teacher_mixture": 0.5}},
]


def step(loss: dict[str, Any], teachers: dict[str, Any]) -> tuple[Snapshot, Mapping[str, float]]:
    """Returns the weights after a step of distillation, and its metrics.

    With a large epsilon, AdamW moves in proportion to the gradient instead of amplifying rounding of small ones.
    """
    algorithm = {"advantages": [], "max_mismatch": None, "teachers": teachers, **loss}
    options = {"learning_rate": 1.0, "epsilon": 1.0, "grad_clip": 1e9, "weights_dtype": "float32"}
    backend = backends.build({"kind": "local", **options}, TINY, algorithm, seed=0)
    metrics = backend.step(batch())
    return snapshot_of(backend), metrics


@pytest.mark.parametrize("loss", LOSSES, ids=str)
async def test_a_teacher_behind_a_server_gives_the_step_of_the_same_teacher_in_the_trainer(
    loss: dict[str, Any],
) -> None:
    async with TeacherServer().serving() as server:
        remote, metrics = await asyncio.to_thread(step, loss, {"large": {"endpoint": endpoint(server).model_dump()}})
    own, _ = await asyncio.to_thread(step, loss, {"large": {"model": TEACHER}})

    initial = {
        name: weight.detach().numpy() for name, weight in named_weights(models.build(TINY).architecture()).items()
    }
    for name, (_, shape, bits) in own.tensors.items():
        change = bits.view("<f4").reshape(shape) - initial[name]
        remote_change = remote.tensors[name][2].view("<f4").reshape(shape) - initial[name]
        assert np.abs(change).max() > 0, name
        np.testing.assert_allclose(remote_change, change, atol=1e-4 * np.abs(change).max(), err_msg=name)
    assert metrics["teacher_s"] > 0
    assert metrics["teacher_missing"] == 0


async def test_each_rank_gets_the_logprobs_of_its_own_tokens() -> None:
    async with CompletionsServer().serving() as server:
        planner = StepPlanner(
            AlgorithmConfig.parse(
                {
                    "minibatches": 2,
                    "token_advantages": [{"kind": "distillation"}],
                    "teachers": {"large": {"endpoint": endpoint(server).model_dump()}},
                },
                where="algorithm",
            ),
            data_ranks=2,
            micro_batch_tokens=40,
            cost=ForwardCost.of_model(make_torch.model()),
            teachers={"large": TeacherEndpoint(endpoint(server), vocabulary=VOCABULARY)},
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
        teacher = TeacherEndpoint(endpoint(server, attempts=4), vocabulary=VOCABULARY)
        scores = await asyncio.to_thread(teacher.scores, {7: trajectory}, top=0)

    assert scores[7].logprobs.tolist() == pytest.approx(server.score(trajectory.tokens[5:].tolist()))


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
        with raises_code(error, code):
            await asyncio.to_thread(check, endpoint(server, attempts=1, **changes))


def check(config: TeacherEndpointConfig, *, top: int = 0) -> None:
    TeacherEndpoint(config, vocabulary=VOCABULARY).check(TOKENIZER, top=top)


async def test_a_server_with_another_tokenizer_stops_the_trainer_at_its_start() -> None:
    server = CompletionsServer()
    server.tokenize = TOKENIZER.encode
    async with server.serving():
        await asyncio.to_thread(check, endpoint(server), top=2)
        server.tokenize = lambda text: TOKENIZER.encode(text.upper())
        with raises_code(InvalidInput, "trainer.teacher_tokenizer"):
            await asyncio.to_thread(check, endpoint(server))


@pytest.mark.parametrize("is_sglang", [False, True], ids=["vllm", "sglang"])
async def test_the_most_likely_tokens_of_both_servers_are_read(is_sglang: bool) -> None:
    server = TeacherServer()
    server.fields = ("token_ids", "logprobs") if is_sglang else ("token_ids", "prompt_logprobs")
    trajectory = batch().rows[0].trajectory
    async with server.serving():
        teacher = TeacherEndpoint(endpoint(server), vocabulary=128)
        scores = (await asyncio.to_thread(teacher.scores, {7: trajectory}, top=3))[7]

    written = np.flatnonzero(trajectory.loss_mask())
    expected = [server.tops(trajectory.tokens.tolist(), 3)[at - 1] for at in written]
    whole = [0.0, *server.score(trajectory.tokens.tolist())]
    assert scores.logprobs.tolist() == pytest.approx([whole[at] for at in written], abs=1e-6)
    for ids, values, head in zip(scores.top_tokens.tolist(), scores.top_logprobs.tolist(), expected, strict=True):
        assert dict(zip(ids, values, strict=True)) == pytest.approx(head, abs=1e-6)


@pytest.mark.parametrize(
    ("code", "head"),
    [
        ("trainer.teacher_scores", {VOCABULARY: -0.5}),
        ("trainer.teacher_scores", {-2: -0.5}),
        ("engine.invalid_completion", {3: math.nan}),
        ("trainer.teacher_scores", {3: 0.5}),
        ("trainer.teacher_scores", {3: -0.1, 4: -0.1}),
        ("engine.invalid_completion", {"x": -0.5}),
        ("engine.invalid_completion", {3: None}),
        ("engine.invalid_completion", None),
        ("engine.invalid_completion", {2**70: -0.5}),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_sglang", [False, True], ids=["vllm", "sglang"])
async def test_scores_that_no_teacher_can_give_are_refused(code: str, head: Any, is_sglang: bool) -> None:
    server = CompletionsServer()
    server.fields = ("token_ids", "logprobs") if is_sglang else ("token_ids", "prompt_logprobs")
    server.tops = lambda tokens, count: [head] * (len(tokens) - 1)  # type: ignore[method-assign]
    async with server.serving():
        teacher = TeacherEndpoint(endpoint(server), vocabulary=VOCABULARY)
        with raises_code(CorruptData, code):
            await asyncio.to_thread(teacher.scores, {7: batch().rows[0].trajectory}, top=2)


async def test_an_answer_about_fewer_tokens_is_refused() -> None:
    async def short(request: web.Request) -> web.Response:
        body = await request.json()
        choice = server._choice(body)
        return web.json_response({"choices": [{**choice, "prompt_logprobs": choice["prompt_logprobs"][:-1]}]})

    server = CompletionsServer()
    server.faults.append(short)
    async with server.serving():
        teacher = TeacherEndpoint(endpoint(server), vocabulary=VOCABULARY)
        with raises_code(CorruptData, "engine.invalid_completion"):
            await asyncio.to_thread(teacher.scores, {7: batch().rows[0].trajectory}, top=2)
