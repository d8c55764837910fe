"""Kept transcripts, asked again: whoever changes what the guard says has the change looked at."""

from pathlib import Path
from typing import Any

import pytest

from maintainer.fleet import evidence
from maintainer.replay import replayed
from maintainer.transcript import read
from tests.maintainer.scenes import AGAIN, KEPT, SCENES, kept, recorded

pytestmark = pytest.mark.anyio

LOOK = f"the guard says something else now: if it is to, write the transcripts again ({AGAIN}) and have that looked at"
FINDINGS = {
    *("kill_switch", "mode", "max_nodes", "min_nodes", "breaker", "rate", "cool_down", "hold", "last_ready", "stale"),
    *("usd_per_hour", "fleet_usd_per_hour", "usd_per_day", "fleet_usd_per_day", "undone", "envelope"),
}
"""All but two: no tool plans for instances of others (`scope`), or without a drain (`kill`)."""


def verdicts(path: Path) -> list[Any]:
    """What was planned, what the guard was told of it, and what it said."""
    return [entry.body for entry in read(path).entries if entry.kind == "verdict"]


def said(path: Path) -> list[tuple[Any, ...]]:
    """In short: what was planned, and what the guard found."""
    return [
        (one["phase"], one["pool"], one["target"], one["verdict"], [finding[:2] for finding in one["findings"]])
        for one in verdicts(path)
    ]


def test_every_scene_is_kept_and_nothing_else() -> None:
    assert {path.name for path in KEPT.iterdir()} == {kept(name).name for name in SCENES}


@pytest.mark.parametrize("name", SCENES)
def test_todays_guard_says_of_kept_plans_what_was_said_then(name: str) -> None:
    found = replayed(kept(name))
    assert found.verdicts > 0
    assert found.differences == (), "\n".join([LOOK, *(one.text() for one in found.differences)])


@pytest.mark.parametrize("name", SCENES)
async def test_a_scene_that_is_played_today_is_judged_as_it_was(tmp_path: Path, name: str) -> None:
    """Also what the guard is told is of today here: the desk, the ledger and the clock have their part in it."""
    assert said(await recorded(name, tmp_path)) == said(kept(name)), LOOK


async def test_a_scene_is_written_the_same_every_time(tmp_path: Path) -> None:
    for name in ("breaker", "kill-switch"):
        first, second = ((tmp_path / f"{name}-{number}") for number in (1, 2))
        first.mkdir()
        second.mkdir()
        assert (await recorded(name, first)).read_bytes() == (await recorded(name, second)).read_bytes()


def test_all_that_an_agent_can_be_told_is_in_what_is_kept() -> None:
    found = [body for name in SCENES for body in verdicts(kept(name))]
    assert {finding[0] for body in found for finding in body["findings"]} == FINDINGS
    assert {body["verdict"] for body in found} == {"allowed", "needs_approval", "refused"}
    assert {body["phase"] for body in found} == {"plan", "apply"}


def test_a_guard_that_lets_everything_pass_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "judge", lambda situation, proposal, limits: ())
    found = [one for name in SCENES for one in replayed(kept(name)).differences]
    refused = [body for name in SCENES for body in verdicts(kept(name)) if body["verdict"] != "allowed"]
    assert len(found) == len(refused)
    assert "+allowed" in found[0].text()
