"""`python -m maintainer eval` as people type it: a process of its own, with the stand-ins and over the Messages API."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from maintainer.__main__ import main
from maintainer.evals.command import INTERRUPTED
from maintainer.llm.scripted import CHARACTERS
from tests.fakes.chat_completions import NEWER, serving_completions
from tests.fakes.messages_api import KEY, serving_messages

pytestmark = pytest.mark.anyio

SMALL = ("--case", "slow-link", "--seeds", "1", "--encounters", "1")


async def asked(directory: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Its exit code and what it said."""
    process = await _started(directory, *arguments, **environment)
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def _started(directory: Path, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    inherited = {name: value for name, value in os.environ.items() if name != "ANTHROPIC_API_KEY"}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "maintainer", "eval", "--output", str(directory / "board.json"), *arguments),
        env={**inherited, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


def board(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "board.json").read_text())
    return found


async def test_the_characters_come_to_a_board_and_a_model_behind_the_messages_api_to_the_same(tmp_path: Path) -> None:
    code, said = await asked(tmp_path, *SMALL)
    assert code == 0, said
    characters = board(tmp_path)
    assert [one["model"] for one in characters["lines"]] == [f"scripted {name}" for name in CHARACTERS]
    assert characters["about"].startswith("No language model was run")
    assert characters["encounters"]["played"] == 1
    assert "scripted good (a stand-in, no model)\n[  1/1] slow-link" in said
    assert (tmp_path / "board.md").read_text().strip() in said
    assert not list(tmp_path.glob("*.jsonl")), "what is written is not kept twice"

    there = tmp_path / "over-the-api"
    async with serving_messages() as api:
        given = ("--model", "a-model", "--base-url", api.url, "--prices", "4,20", "--stand-in")
        code, said = await asked(there, *SMALL, *given, ANTHROPIC_API_KEY=KEY)
        assert code == 0, said
        assert api.refused == []
        assert api.requests
    over_api = board(there)
    assert over_api["lines"][0]["is_simulated"], "what answered was no model"
    assert over_api["lines"][0]["usd"] > 0
    (mine,), (same,) = over_api["cases"]["a-model"], characters["cases"]["scripted good"]
    assert mine["ratios"] == same["ratios"], "the adapter changes nothing"
    assert mine["use"]["calls"] == same["use"]["calls"] > 0


async def test_a_case_played_over_chat_completions_comes_to_the_same(tmp_path: Path) -> None:
    file, there, here = tmp_path / "model.toml", tmp_path / "there", tmp_path / "here"
    file.write_text('[model]\nkind = "scripted"\n')
    code, said = await asked(here, *SMALL, "--config", str(file))
    assert code == 0, said
    async with serving_completions(NEWER, knows_strict=False) as api:
        file.write_text(
            f'[model]\nkind = "chat_completions"\nmodel = "a-model"\nbase_url = "{api.base_url}"\n'
            'key_variable = "CHAT_KEY"\nstrict = false\nsingle_calls = false\n'
            'tokens_word = "max_completion_tokens"\nprices = { input = 4.0, output = 20.0 }\n'
        )
        code, said = await asked(there, *SMALL, "--stand-in", "--config", str(file), CHAT_KEY=KEY)
        assert code == 0, said
        assert (api.refused, bool(api.requests)) == ([], True)
    (mine,), (same,) = board(there)["cases"]["a-model"], board(here)["cases"]["scripted good"]
    assert mine["ratios"] == same["ratios"], "the adapter changes nothing"
    assert mine["use"]["calls"] == same["use"]["calls"] > 0
    assert board(there)["lines"][0]["usd"] > 0


async def test_one_that_was_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # where it is ignored, what is started ignores it too
    try:
        process = await _started(tmp_path, *SMALL, "--case", "steady")
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    async for line in process.stdout:
        if b"slow-link" in line:
            break
    process.send_signal(signal.SIGINT)
    said, _ = await process.communicate()
    assert process.returncode == INTERRUPTED, said
    assert b"the same command goes on" in said
    plays = (tmp_path / "board.plays.jsonl").read_text().splitlines()
    assert len(plays) >= 2, "with and without a maintainer"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--case", "no-such"), "no case is called 'no-such': steady"),
        (("--seeds", "99"), "--seeds 99: there are"),
        (("--encounters", "-1"), "--encounters -1: 0 is the least"),
        (("--model", "a-model"), "--model needs --prices IN,OUT"),
        (("--model", "a-model", "--prices", "4,20"), "set the environment variable ANTHROPIC_API_KEY"),
        (("--model", "a-model", "--prices", "4,-1"), "prices.output"),
        (("--model", "a-model", "--prices", "4,20", "--kind", "other"), "no model is called 'other'"),
        (("--config", "no-such.toml"), "no-such.toml"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_played(
    arguments: tuple[str, ...],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert main(["eval", "--output", str(tmp_path / "board.json"), *arguments]) != 0
    said = capsys.readouterr()
    assert problem in said.err
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


async def test_a_wrong_key_ends_it_before_a_score_is_made_of_it(tmp_path: Path) -> None:
    async with serving_messages() as api:
        given = ("--model", "a-model", "--base-url", api.url, "--prices", "4,20")
        code, said = await asked(tmp_path, *SMALL, *given, ANTHROPIC_API_KEY="sk-wrong")
    assert code != 0
    assert "a-model does not answer" in said
    assert not (tmp_path / "board.json").exists()
