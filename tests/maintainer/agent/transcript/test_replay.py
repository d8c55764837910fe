"""Replay of stored transcripts: a change of the guard's verdicts requires a review."""

from pathlib import Path
from typing import Any

import pytest

from maintainer.agent.transcript.replay import replay_transcript
from maintainer.agent.transcript.transcript import read
from maintainer.fleet.guard import inputs
from tests.maintainer.scenes import AGAIN, KEPT, SCENES, kept, recorded

pytestmark = pytest.mark.anyio

LOOK = f"the guard says something else now: if it is to, write the transcripts again ({AGAIN}) and have that looked at"
FINDINGS = {
    *(
        "kill_switch",
        "mode",
        "max_nodes",
        "min_nodes",
        "breaker",
        "rate",
        "cool_down",
        "hold",
        "last_ready",
        "stale",
    ),
    *("usd_per_hour", "fleet_usd_per_hour", "usd_per_day", "fleet_usd_per_day", "undone", "distance"),
}
"""All findings but two: no tool plans for instances of others (`scope`) or without a drain (`kill`)."""


def verdicts(path: Path) -> list[Any]:
    """Returns plan, guard inputs and findings of each verdict."""
    return [entry.body for entry in read(path).entries if entry.kind == "verdict"]


def outcomes(path: Path) -> list[tuple[Any, ...]]:
    """Returns plan and findings of each verdict in short form."""
    return [
        (
            verdict["phase"],
            verdict["pool"],
            verdict["target"],
            verdict["verdict"],
            [finding[:2] for finding in verdict["findings"]],
        )
        for verdict in verdicts(path)
    ]


def test_every_scene_has_a_stored_transcript() -> None:
    assert {path.name for path in KEPT.iterdir()} == {kept(name).name for name in SCENES}


@pytest.mark.parametrize("name", SCENES)
def test_the_guard_gives_stored_plans_their_stored_verdicts(name: str) -> None:
    replayed = replay_transcript(kept(name))
    assert replayed.verdicts > 0
    assert replayed.differences == (), "\n".join([LOOK, *(difference.text() for difference in replayed.differences)])


@pytest.mark.parametrize("name", SCENES)
async def test_a_scene_run_today_has_the_stored_verdicts(tmp_path: Path, name: str) -> None:
    """The guard inputs are new too, so this also covers the fleet manager, the ledger and the clock."""
    assert outcomes(await recorded(name, tmp_path)) == outcomes(kept(name)), LOOK


@pytest.mark.long
async def test_a_scene_writes_the_same_transcript_every_time(tmp_path: Path) -> None:
    for name in ("breaker", "kill-switch"):
        first, second = ((tmp_path / f"{name}-{number}") for number in (1, 2))
        first.mkdir()
        second.mkdir()
        assert (await recorded(name, first)).read_bytes() == (await recorded(name, second)).read_bytes()


def test_the_stored_transcripts_have_every_finding_for_agents() -> None:
    replayed = [body for name in SCENES for body in verdicts(kept(name))]
    assert {finding[0] for body in replayed for finding in body["findings"]} == FINDINGS
    assert {body["verdict"] for body in replayed} == {"allowed", "needs_approval", "refused"}
    assert {body["phase"] for body in replayed} == {"plan", "apply"}


def test_a_guard_without_findings_fails_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "judge", lambda situation, proposal, limits: ())
    replayed = [difference for name in SCENES for difference in replay_transcript(kept(name)).differences]
    refused = [body for name in SCENES for body in verdicts(kept(name)) if body["verdict"] != "allowed"]
    assert len(replayed) == len(refused)
    assert "+allowed" in replayed[0].text()
