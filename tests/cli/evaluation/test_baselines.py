import asyncio
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.cli.evaluation.baselines import BaselineRequest, read_key, score_endpoint, score_folders
from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from tests.fakes.hosted_endpoint import KEY, failing, hosted
from tests.make_torch import TINY

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forked_programs")]

EXAMPLES = Path(__file__).resolve().parents[3] / "recipes" / "examples"


REQUEST = BaselineRequest(
    recipe="smoke",
    overrides=(),
    name="progress",
    samples=0,
    prompts=0,
    seed=None,
    concurrency=1,
    timeout_s=60.0,
    episodes=None,
    as_json=True,
)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    return file


async def command(*arguments: str, plugin: Path | None = None) -> asyncio.subprocess.Process:
    plugins = ("--plugin", str(plugin)) if plugin else ()
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "astraflow.cli", *plugins, "evaluate", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def right(body: dict[str, Any]) -> dict[str, Any]:
    return {"content": "right"}


def calls_the_tool(body: dict[str, Any]) -> dict[str, Any]:
    """Plays the model of the agent in recipes/examples/openai_agent.py, on questions such as `rev abc=`."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return {"content": last["content"]}
    arguments = json.dumps({"text": last["content"].removeprefix("rev ").removesuffix("=")})
    return {
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "reverse", "arguments": arguments}}],
    }


@pytest.mark.long
async def test_an_unchanged_agent_is_scored_with_an_endpoint_behind_the_proxy(key_file: Path, tmp_path: Path) -> None:
    episodes = tmp_path / "episodes.jsonl"
    async with hosted(calls_the_tool) as endpoint:
        endpoint.fault_every = {7: failing(503)}
        process = await command(
            *("endpoint", str(EXAMPLES / "openai_agent.toml"), "train", endpoint.base_url, "--model", "large"),
            *("--api-key-file", str(key_file), "--samples", "2", "--limit", "3", "--json", "--episodes", str(episodes)),
            plugin=EXAMPLES / "openai_agent.py",
        )
        out, stderr = await process.communicate()
    assert process.returncode == 0, stderr
    report = json.loads(out)
    scores = {score["name"]: score["value"] for score in report["scores"]}
    assert scores["solver.avg@2"] == scores["solver.pass@2"] == 1.0
    assert (report["done"], report["masked"], report["usage"]["calls"]) == (6, 0, 12)
    assert report["usage"]["retries"] == len(endpoint.requests) - 12 > 0
    assert {body["model"] for body in endpoint.requests} == {"large"}
    assert endpoint.requests[0]["tools"][0]["function"]["name"] == "reverse"
    samples = [json.loads(line) for line in episodes.read_text().splitlines()]
    assert len(samples) == 6
    assert "[call reverse" in samples[0]["trajectories"][0]["completion"]
    assert KEY.encode() not in out + stderr + episodes.read_bytes()


@pytest.mark.long
async def test_interrupting_keeps_the_scores_so_far(key_file: Path) -> None:
    async with hosted(right) as endpoint:
        endpoint.delays_s.extend([0.0] * 4 + [60.0] * 8)
        process = await command(
            *("endpoint", "smoke", "progress", endpoint.base_url, "--model", "large", "--json"),
            *("--api-key-file", str(key_file), "--samples", "2", "--concurrency", "2"),
        )
        async with asyncio.timeout(60):
            while len(endpoint.requests) < 6:
                endpoint.began.clear()
                await endpoint.began.wait()
        process.send_signal(signal.SIGINT)
        out, stderr = await process.communicate()
    report = json.loads(out)
    assert process.returncode == 1, stderr
    assert (report["state"], report["done"], report["complete_prompts"], report["masked"]) == ("stopped", 4, 2, 0)
    assert {score["value"] for score in report["scores"]} == {1.0}


@pytest.mark.long  # torch is imported in another process
async def test_a_saved_model_is_scored_from_the_command_line() -> None:
    folder = models.build(TINY).prepare()
    process = await command("folder", "smoke", "progress", str(folder), "--samples", "2", "--limit", "3", "--seed", "1")
    out, stderr = await process.communicate()
    assert process.returncode == 0, stderr
    assert b"avg@2" in out
    assert b"6 of 6 samples" in out


@pytest.mark.long
async def test_a_wrong_key_ends_the_command_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-wrong-and-private")
    async with hosted(right) as endpoint:
        process = await command(
            *("endpoint", "smoke", "progress", endpoint.base_url, "--model", "large"),
            *("--api-key-variable", "SOME_KEY", "--limit", "2"),
        )
        out, stderr = await process.communicate()
    assert process.returncode == 1
    assert b"401" in out
    assert b"sk-wrong-and-private" not in out + stderr


@pytest.mark.parametrize(
    ("score", "code"),
    [
        (lambda: score_endpoint(REQUEST, {"base_url": "http://127.0.0.1:1/v1"}, [], key=""), "baseline.policy_missing"),
        (lambda: score_folders(REQUEST, ["/nonexistent"], engine=""), "baseline.no_model"),
        (lambda: score_folders(REQUEST, ["/nonexistent"], engine="{"), "baseline.invalid_engine"),
        (lambda: score_folders(replace(REQUEST, name="held-out"), ["x"], engine=""), "baseline.unknown_tasks"),
    ],
)
def test_requests_that_name_nothing_to_score_are_refused(score: Callable[[], int], code: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        score()
    assert refusal.value.code == code


def test_a_key_is_read_from_a_file_or_a_variable(
    key_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOME_KEY", f" {KEY} ")
    assert read_key(key_file, "") == read_key(None, "SOME_KEY") == KEY
    assert read_key(None, "") == ""
    (tmp_path / "two").write_text("a\nb\n")
    for file, variable in ((tmp_path / "none", ""), (None, "OTHER"), (tmp_path / "two", ""), (key_file, "SOME_KEY")):
        with pytest.raises(InvalidInput):
            read_key(file, variable)
