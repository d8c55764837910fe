import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from astraflow.agents.session_limits import SessionOptions
from astraflow.agents.upstream.client import Upstream, UpstreamOptions
from astraflow.baselines.report import BaselineReport, SampleResult
from astraflow.baselines.round import BaselineRound
from astraflow.baselines.selection import Selection, select
from astraflow.baselines.served_model import serve_model
from astraflow.baselines.subjects import Subject, endpoint_subject, folder_subject
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.datasets.generated.scripted import parse_scripted_answer
from astraflow.models import models
from astraflow.models.causal import load_model
from astraflow.recipe.config import Recipe
from astraflow.recipe.loading import load_recipe
from tests.agents.upstream_parts import Instant
from tests.fakes.completions_server import CompletionsServer
from tests.fakes.hosted_endpoint import KEY, HostedEndpoint, failing, hosted, nonsense
from tests.make_torch import TINY

pytestmark = pytest.mark.anyio

SOLVER = PolicyId("solver")


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """Answers three of four prompts of the dataset `scripted`, with the same answer in every sample."""
    question = body["messages"][-1]["content"]
    number = int(question.split()[1].rstrip(","))
    known = parse_scripted_answer(question)
    assert known is not None
    return {"content": known.word if number % 4 else "wrong"}


@asynccontextmanager
async def endpoint(
    reply: Any = answer, *, recipe: Recipe | None = None, model: str = "large", **options: Any
) -> AsyncIterator[tuple[HostedEndpoint, Subject]]:
    async with hosted(reply) as server, AsyncExitStack() as resources:
        upstream = Upstream(UpstreamOptions(base_url=server.base_url, **options), key=KEY, clock=Instant())
        policies = dict.fromkeys(map(PolicyId, (recipe or load_recipe("smoke")).policies), model)
        yield server, await endpoint_subject(upstream, server.base_url, policies, resources)


async def scored(
    selection: Selection, subject: Subject, *, concurrency: int = 4
) -> tuple[BaselineReport, list[SampleResult]]:
    results: list[SampleResult] = []
    rounds = BaselineRound(selection, subject, concurrency=concurrency, timeout_s=60, on_sample=results.append)
    await rounds.run()
    return rounds.report(), results


@pytest.mark.long
async def test_an_endpoint_that_sometimes_fails_is_scored_as_if_it_did_not() -> None:
    async with endpoint() as (server, subject):
        server.fault_every = {5: failing(429), 7: failing(500), 11: nonsense}
        report, results = await scored(select(load_recipe("smoke"), "progress", samples=4, prompts=12), subject)
    right = {result.prompt for result in results if int(result.prompt.rpartition(":")[2]) % 4}
    assert len({result.prompt for result in results}) == 12
    values = {score.name: score.value for score in report.scores}
    assert values == dict.fromkeys(("avg@4", "pass@1", "pass@2", "pass@4", "maj@4"), len(right) / 12)
    assert all(score.interval and score.interval.low < score.value < score.interval.high for score in report.scores)
    assert (report.state, report.done, report.masked, report.complete_prompts) == (EvaluationState.DONE, 48, 0, 12)
    usage = report.usage
    assert usage["calls"] == 48
    assert usage["retries"] == len(server.requests) - 48
    assert len(server.requests) > 48
    assert usage["completion_tokens"] == 48 * 7
    assert KEY not in str(report.json_value())


async def test_samples_that_fail_in_every_attempt_are_masked_and_never_zero() -> None:
    def sometimes(body: dict[str, Any]) -> dict[str, Any]:
        if "item 4257," in body["messages"][-1]["content"]:
            raise RuntimeError("defect of the server")  # answered with 500
        return {"content": "right"}

    async with endpoint(sometimes, attempts=1) as (_, subject):
        report, results = await scored(select(load_recipe("smoke"), "progress", samples=2, prompts=4), subject)
    failed = [result for result in results if result.failure]
    assert {result.prompt for result in failed} == {"scripted:4257"}
    assert all(result.attempt == 2 and not result.trajectories for result in failed)
    assert (report.masked, report.failed, report.failures, report.retried) == (2, 1, {"engine": 2}, 4)
    assert {score.name: (score.value, score.prompts) for score in report.scores} == dict.fromkeys(
        ("avg@2", "pass@1", "pass@2", "maj@2"), (1.0, 3)
    )
    assert report.errors


async def test_a_spent_budget_ends_the_round_with_the_scores_so_far() -> None:
    async with endpoint(max_calls=9) as (server, subject):
        report, results = await scored(
            select(load_recipe("smoke"), "progress", samples=2, prompts=12), subject, concurrency=1
        )
    assert len(server.requests) == len(results) == 9
    assert (report.state, report.done, report.total, report.complete_prompts) == (EvaluationState.STOPPED, 9, 24, 4)
    assert report.reason
    assert report.masked == 0
    assert {score.prompts for score in report.scores} == {4}


async def test_several_policies_are_scored_by_their_roles() -> None:
    recipe = load_recipe("smoke/two_policies")
    async with endpoint(lambda body: {"content": "right"}, recipe=recipe) as (_, subject):
        report, _ = await scored(select(recipe, "progress", samples=2, prompts=3), subject)
    assert report.state is EvaluationState.DONE
    assert {score.policy for score in report.scores} == {"solver", "verifier"}
    assert {score.name.partition(".")[0] for score in report.scores} == {"solver", "verifier"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a saved tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTRAFLOW_HOME", str(tmp_path_factory.mktemp("home")))
        return models.build(TINY).prepare()


@pytest.mark.long
async def test_a_saved_model_is_scored_in_the_real_engine(folder: Path) -> None:
    selection = select(load_recipe("smoke"), "progress", samples=2, prompts=3, seed=5)
    scores = []
    for _ in range(2):
        async with AsyncExitStack() as resources:
            subject = await folder_subject({SOLVER: folder}, {"kind": "local_torch"}, resources)
            report, results = await scored(selection, subject)
        assert (report.state, report.done, report.masked) == (EvaluationState.DONE, 6, 0)
        assert report.usage["completion_tokens"] != 0
        scores.append({(result.prompt, result.sample): result.trajectories[0]["completion"] for result in results})
    assert scores[0] == scores[1]
    assert len(set(scores[0].values())) > 3
    assert {score.name for score in report.scores} >= {"avg@2", "pass@1", "pass@2"}


class ModelServer(CompletionsServer):
    """Server of a party that hosts the model of a folder, with greedy sampling."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._model = load_model(folder, attention="sdpa").eval()

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, begin = list(body["prompt"]), len(body["prompt"])
        for _ in range(body["max_tokens"]):
            tokens.append(int(self._logprobs(tokens)[-1].argmax()))
        rows = self._logprobs(tokens)[:-1].gather(1, torch.tensor(tokens)[1:, None])[:, 0].tolist()
        scores = [None, *rows]
        prompt_scores = zip(tokens[:begin], scores[:begin], strict=True)
        return {
            "finish_reason": "length",
            "text": "",
            "token_ids": tokens[begin:],
            "logprobs": {"token_logprobs": scores[begin:]},
            "prompt_logprobs": [
                None if score is None else {str(token): {"logprob": score, "rank": 1}} for token, score in prompt_scores
            ],
        }

    def _logprobs(self, tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        return logits.log_softmax(-1)


@pytest.mark.parametrize("is_same", [True, False])
async def test_a_server_with_token_ids_is_scored_if_it_serves_the_weights_of_the_folder(
    folder: Path, is_same: bool
) -> None:
    server = ModelServer(folder) if is_same else CompletionsServer()
    async with server.serving(), AsyncExitStack() as resources:
        spec = {"kind": "openai_tokens", "base_url": server.url, "model": "policy", "refresh_timeout_s": 0.0}
        if not is_same:
            with pytest.raises(InvalidInput) as refusal:
                await folder_subject({SOLVER: folder}, spec, resources)
            assert refusal.value.code == "baseline.logprob_mismatch"
            return
        subject = await folder_subject({SOLVER: folder}, spec, resources)
        report, _ = await scored(select(load_recipe("smoke"), "progress", samples=2, prompts=2), subject)
    assert (report.done, report.masked, report.usage["completion_tokens"]) == (4, 0, 4 * 32)


async def test_a_simulated_engine_cannot_score_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from astraflow.raas.engines.local_torch import LocalTorchEngine

    monkeypatch.setattr(LocalTorchEngine, "is_simulated", True)
    for kind, code in (("scripted", "engine.unsupported_model"), ("local_torch", "baseline.simulated_engine")):
        async with AsyncExitStack() as resources:
            with pytest.raises(InvalidInput) as refusal:
                await folder_subject({SOLVER: folder}, {"kind": kind}, resources)
        assert refusal.value.code == code


@pytest.mark.long
async def test_an_engine_that_computes_something_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from astraflow.raas.engines.local_torch import LocalTorchEngine

    score = LocalTorchEngine.score

    async def shifted(engine: LocalTorchEngine, tokens: Any, scored_from: int) -> Any:
        return await score(engine, tokens, scored_from) - 0.5

    monkeypatch.setattr(LocalTorchEngine, "score", shifted)
    async with AsyncExitStack() as resources:
        with pytest.raises(InvalidInput) as refusal:
            await folder_subject({SOLVER: folder}, {"kind": "local_torch"}, resources)
    assert refusal.value.code == "baseline.logprob_mismatch"


async def test_a_folder_is_served_to_clients_of_the_openai_api_call_by_call(tmp_path: Path) -> None:
    spec = {**TINY, "max_context_tokens": 64}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTRAFLOW_HOME", str(tmp_path))
        folder = models.build(spec).prepare()
    stop, urls = asyncio.Event(), asyncio.Queue[str]()
    options = SessionOptions(max_new_tokens=3, max_turns=1)
    engine = {"kind": "local_torch"}
    serving = serve_model(folder, engine, options, port=0, stop=stop, on_ready=urls.put_nowait)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serving)
        async with httpx.AsyncClient(base_url=await urls.get()) as client:
            body = {"model": "any", "messages": [{"role": "user", "content": "ab"}], "temperature": 0.1}
            replies = [await client.post("/chat/completions", json=body) for _ in range(2)]
            assert [reply.json()["usage"]["completion_tokens"] for reply in replies] == [3, 3]
            tokens = await client.post("/responses", json={"previous_response_id": "x", "input": "y", "model": "m"})
            assert tokens.status_code == 404
        stop.set()
