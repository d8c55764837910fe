"""The checks pass on engines that keep their promises, and name the promise that an engine breaks."""

import asyncio
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.conformance.engine_subjects import SMALL, plugin_subject, server_subject
from astraflow.conformance.engines import CHECKS, run_checks
from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import Outcome
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.base import PauseMode
from tests.fakes.completions_server import CompletionsServer
from tests.raas import own_engine

SIMULATED = {
    "kind": "scripted",
    "first_token_s": {"kind": "constant", "mean": 0.01},
    "tokens": {"kind": "constant", "mean": 200},
}


async def outcomes(subject: Any) -> dict[str, Outcome]:
    return {result.promise: result.outcome async for result in run_checks(subject)}


def failed(results: dict[str, Outcome]) -> list[str]:
    return [promise for promise, outcome in results.items() if outcome is Outcome.FAILED]


@pytest.mark.anyio
async def test_a_simulated_engine_passes_its_supported_checks() -> None:
    results = await outcomes(plugin_subject(SIMULATED))

    assert failed(results) == []
    assert list(results) == list(CHECKS)
    assert results["loses no request to a load"] is Outcome.PASSED
    assert results["agrees with the trainer's logprobs"] is Outcome.UNSUPPORTED


@pytest.mark.anyio
async def test_the_built_in_engine_passes_with_a_real_model() -> None:
    subject = plugin_subject({"kind": "local_torch"})
    subject.sampling = Sampling(max_new_tokens=300)
    results = await outcomes(subject)

    assert failed(results) == []
    assert results["agrees with the trainer after several loads"] is Outcome.PASSED
    assert results["computes kept requests again on new weights"] is Outcome.PASSED
    assert results["samples with top_k"] is results["samples with a seed"] is Outcome.PASSED


@pytest.mark.long
@pytest.mark.anyio
async def test_the_documented_example_engine_passes() -> None:
    subject = plugin_subject({"kind": "own"})
    subject.sampling = Sampling(max_new_tokens=60)
    results = await outcomes(subject)

    assert isinstance(subject.engine, own_engine.OwnEngine)
    assert failed(results) == []


@pytest.mark.anyio
async def test_a_third_party_server_is_checked_without_loads() -> None:
    server = CompletionsServer()
    async with server.serving():
        spec = {"kind": "openai_tokens", "base_url": server.url, "model": "policy", "dtype": "float32"}
        subject = await server_subject(spec, prompt=np.arange(2, 9, dtype=np.int32), max_new_tokens=20)
        results = await outcomes(subject)

    assert failed(results) == []
    assert results["loses no request to a load"] is Outcome.UNSUPPORTED
    assert results["agrees with the trainer's logprobs"] is Outcome.UNSUPPORTED
    assert results["returns the logprobs that it sampled with"] is Outcome.PASSED


class _Broken(own_engine.OwnEngine):
    """Breaks three promises."""

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        written = await super().generate(request_id, prompt, sampling)
        return Generation(
            tokens=written.tokens, logprobs=written.logprobs * 2, spans=written.spans, finish=written.finish
        )

    async def abort(self, request_id: str) -> None:
        if request_id == "unknown":
            raise KeyError(request_id)
        await super().abort(request_id)

    async def pause(self, mode: PauseMode) -> None:
        await asyncio.sleep(0)
        if mode is PauseMode.ABORT:
            await super().pause(mode)


@pytest.mark.long
@pytest.mark.anyio
async def test_each_failed_check_is_reported() -> None:
    subject = plugin_subject({"kind": "own"})
    subject.engine = _Broken(own_engine.OwnOptions(), SMALL)
    subject.sampling = Sampling(max_new_tokens=60)
    broken = failed(await outcomes(subject))

    assert "returns the logprobs that it sampled with" in broken
    assert "aborts one request" in broken
    assert "loads verified weights" not in broken


def test_the_command_prints_a_table_and_exits_with_1_for_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["check", "engine", "scripted", "--set", "tokens={kind='constant', mean=200}"]
    passed = CliRunner().invoke(app, arguments)
    assert passed.exit_code == 0, passed.output
    assert "loses no request to a load" in passed.output
    assert "0 failed" in passed.output

    broken = CliRunner().invoke(app, ["check", "engine", "scripted", "--set", "failure_rate=1.0"])
    assert broken.exit_code == 1
    assert "ScriptedFailure" in broken.output


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["http://127.0.0.1:1"], "check.name_required"),
        (["nothing"], "plugin.unknown_kind"),
        (["local_torch", "--model", "tiny"], "check.invalid_model"),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], code: str) -> None:
    result = CliRunner().invoke(app, ["check", "engine", *arguments])
    assert isinstance(result.exception, InvalidInput)
    assert result.exception.code == code
