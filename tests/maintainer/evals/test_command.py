"""`python -m maintainer eval` as a separate process, with the scripted characters and over the Messages API."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow.runtime.service import read_error
from maintainer.__main__ import main
from maintainer.agent.llm.scripted import CHARACTERS
from maintainer.evals.cases import CASES, REHEARSAL, Group
from maintainer.evals.command import INTERRUPTED
from maintainer.evals.leaderboard import NO_MODEL
from tests.fakes.chat_completions import NEWER_FIELDS, serving_completions
from tests.fakes.forking import ForkingProgram
from tests.fakes.messages_api import KEY, serving_messages

pytestmark = pytest.mark.anyio

SMALL = ("--case", "slow-link", "--seeds", "1", "--fuzz-cases", "1")


async def run_command(program: ForkingProgram, directory: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Runs the command; returns its exit code and output."""
    process = await _started(program, directory, *arguments, **environment)
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def _started(
    program: ForkingProgram, directory: Path, *arguments: str, **environment: str
) -> asyncio.subprocess.Process:
    inherited = {name: value for name, value in os.environ.items() if name != "ANTHROPIC_API_KEY"}
    return await asyncio.create_subprocess_exec(
        *(*program.command, *_options(directory, *arguments)),
        env={**inherited, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


def _options(directory: Path, *arguments: str) -> tuple[str, ...]:
    return ("eval", "--output", str(directory / "board.json"), *arguments)


def board(directory: Path) -> dict[str, Any]:
    leaderboard: dict[str, Any] = json.loads((directory / "board.json").read_text())
    return leaderboard


@pytest.fixture(scope="module")
def by_characters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Runs the command once with all scripted characters; returns its directory and output."""
    directory = tmp_path_factory.mktemp("characters")
    finished = subprocess.run(
        (sys.executable, "-m", "maintainer", *_options(directory, *SMALL)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return directory, finished.stdout


@pytest.mark.long
def test_without_a_model_the_leaderboard_has_all_scripted_characters(by_characters: tuple[Path, str]) -> None:
    directory, output = by_characters
    characters = board(directory)
    assert [line["model"] for line in characters["lines"]] == [f"scripted {name}" for name in CHARACTERS]
    assert characters["about"] == NO_MODEL
    assert characters["fuzz_cases"]["played"] == 1
    assert "scripted good (simulated, no model)\n[  1/1] slow-link" in output
    assert (directory / "board.md").read_text().strip() in output
    assert not list(directory.glob("*.jsonl")), "stored results are deleted at the end"


@pytest.mark.long
async def test_a_model_behind_the_messages_api_scores_as_it_does_in_process(
    tmp_path: Path, program: ForkingProgram, by_characters: tuple[Path, str]
) -> None:
    async with serving_messages() as api:
        options = ("--model", "a-model", "--base-url", api.url, "--prices", "4,20", "--simulated")
        code, output = await run_command(program, tmp_path, *SMALL, *options, ANTHROPIC_API_KEY=KEY)
        assert code == 0, output
        assert (api.refused, bool(api.requests)) == ([], True)
    assert board(tmp_path)["lines"][0]["is_simulated"], "a simulated server is labelled"
    assert_same_as_the_good_character(board(tmp_path), by_characters)


@pytest.mark.long
async def test_a_model_behind_chat_completions_scores_as_it_does_in_process(
    tmp_path: Path, program: ForkingProgram, by_characters: tuple[Path, str]
) -> None:
    file = tmp_path / "model.toml"
    async with serving_completions(NEWER_FIELDS, knows_strict=False) as api:
        file.write_text(
            f'[model]\nkind = "chat_completions"\nmodel = "a-model"\nbase_url = "{api.base_url}"\n'
            'key_variable = "CHAT_KEY"\nstrict = false\nsingle_calls = false\n'
            'max_tokens_field = "max_completion_tokens"\nprices = { input = 4.0, output = 20.0 }\n'
        )
        code, output = await run_command(program, tmp_path, *SMALL, "--simulated", "--config", str(file), CHAT_KEY=KEY)
        assert code == 0, output
        assert (api.refused, bool(api.requests)) == ([], True)
    assert_same_as_the_good_character(board(tmp_path), by_characters)


def assert_same_as_the_good_character(over_http: dict[str, Any], by_characters: tuple[Path, str]) -> None:
    """Checks that the adapter changes nothing but the cost."""
    (over,), (alone,) = over_http["cases"]["a-model"], board(by_characters[0])["cases"]["scripted good"]
    assert over["ratios"] == alone["ratios"]
    assert over["use"]["calls"] == alone["use"]["calls"] > 0
    assert over_http["lines"][0]["usd"] > 0


@pytest.mark.long
async def test_an_interrupted_command_says_how_to_continue(tmp_path: Path, program: ForkingProgram) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # child processes inherit an ignored SIGINT
    try:
        process = await _started(program, tmp_path, *SMALL, "--case", "steady")
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    async for line in process.stdout:
        if b"slow-link" in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = await process.communicate()
    assert process.returncode == INTERRUPTED, output
    assert b"run the same command again" in output
    plays = (tmp_path / "board.plays.jsonl").read_text().splitlines()
    assert len(plays) >= 2, "with and without a maintainer"


@pytest.mark.parametrize(
    ("arguments", "error_code", "value"),
    [
        (("--case", "no-such"), "evaluation.unknown_case", "'no-such'"),
        (("--seeds", "99"), "evaluation.invalid_count", "--seeds 99"),
        (("--fuzz-cases", "-1"), "evaluation.invalid_count", "--fuzz-cases -1"),
        (("--model", "a-model"), "evaluation.invalid_prices", "''"),
        (("--model", "a-model", "--prices", "4,20"), "model.key_missing", "ANTHROPIC_API_KEY"),
        (("--model", "a-model", "--prices", "4,-1"), "config.invalid", "prices.output"),
        (("--model", "a-model", "--prices", "4,20", "--kind", "other"), "plugin.unknown_kind", "'other'"),
        (("--config", "no-such.toml"), "file.unreadable", "no-such.toml"),
    ],
)
def test_a_wrong_option_is_refused_before_a_case_runs(
    arguments: tuple[str, ...],
    error_code: str,
    value: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert main(["eval", "--output", str(tmp_path / "board.json"), *arguments]) != 0
    captured = capsys.readouterr()
    message, code = read_error(captured.err.splitlines()[-1])
    assert code == error_code
    assert value in message
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_brief_evaluation_has_cases_of_the_fleet_of_learning_and_attacks_and_needs_prices_and_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    cases = [CASES[name] for name in REHEARSAL]
    assert {case.group for case in cases} == set(Group)
    assert {case.attack is not None for case in cases if case.learning} == {True, False}
    for options, code in ((["--prices", "4,20"], "model.key_missing"), ([], "evaluation.invalid_prices")):
        output = str(tmp_path / "board.json")
        assert main(["rehearse", "--model", "a-model", "--output", output, *options]) != 0
        assert read_error(capsys.readouterr().err.splitlines()[-1])[1] == code


@pytest.mark.long
async def test_a_brief_evaluation_over_the_messages_api_stops_at_its_budget(
    tmp_path: Path, program: ForkingProgram
) -> None:
    output = ("--output", str(tmp_path / "board.json"))
    async with serving_messages() as api:
        options = ("--model", "a-model", "--base-url", api.url, "--prices", "4,20", "--usd-max", "0.2")
        process = await asyncio.create_subprocess_exec(
            *(*program.command, "rehearse", *output, *options),
            env={**os.environ, "ANTHROPIC_API_KEY": KEY},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        text, _ = await process.communicate()
    assert process.returncode == 0, text.decode()
    [line] = board(tmp_path)["lines"]
    assert line["stopped"].endswith("of 0.20 US dollars are spent")
    assert (line["usd"] <= 0.2, line["violations"]) == (True, 0)


@pytest.mark.long
async def test_a_wrong_key_ends_the_command_without_a_leaderboard(tmp_path: Path, program: ForkingProgram) -> None:
    async with serving_messages() as api:
        options = ("--model", "a-model", "--base-url", api.url, "--prices", "4,20")
        code, output = await run_command(program, tmp_path, *SMALL, *options, ANTHROPIC_API_KEY="sk-wrong")
    assert code != 0
    message, error_code = read_error(output.splitlines()[-1])
    assert error_code == "evaluation.model_unavailable"
    assert "'a-model'" in message
    assert not (tmp_path / "board.json").exists()
