"""Evaluations of whole runs with real servers: no second server, only the pinned version, and training goes on."""

import sys
from pathlib import Path

import pytest

from astraflow.runtime.folders.run_folders import home
from benchmarks.server_evaluation import PROMPTS, SAMPLES, WatchedRound, measure, table
from tests.engines.real import KINDS

pytestmark = [pytest.mark.engines, pytest.mark.anyio, pytest.mark.timeout(1500), pytest.mark.usefixtures("installed")]

INSTALLED = home() / "engines"
"""Environments of this machine; tests have a home of their own."""
EVERY, ROUNDS = 4, 2
"""Versions between two rounds, and the rounds at least; more run until one has both nodes."""
STEPS = 10_000
"""More than a run makes until its rounds have ended."""


@pytest.fixture
def installed(forked_programs: None) -> None:
    """Lets programs fork, and makes the installed servers available in the tests' own home."""
    (home() / "engines").symlink_to(INSTALLED)


async def rounds_of(kind: str, folder: Path) -> list[WatchedRound]:
    """Returns the rounds of a run, and prints them for `pytest -rP`."""
    rounds = await measure(kind, folder / "run", steps=STEPS, every_versions=EVERY, limit_s=1400, rounds=ROUNDS)
    sys.stdout.write(f"{kind}\n{table(rounds, nodes=1 if kind == 'openai_tokens' else 2)}")
    return rounds


def assert_pinned(rounds: list[WatchedRound]) -> None:
    """Asserts that each round is complete, and that its version alone wrote its samples, of which a run keeps the
    latest."""
    assert [watched.report.round for watched in rounds] == list(range(1, len(rounds) + 1))
    for watched in rounds:
        assert (watched.report.done, watched.report.masked) == (PROMPTS * SAMPLES, 0)
        assert set(watched.versions) <= {watched.version}
    assert rounds[-1].versions.total() == PROMPTS * SAMPLES


@pytest.mark.parametrize("kind", KINDS)
async def test_one_of_two_nodes_evaluates_while_the_other_one_trains(tmp_path: Path, kind: str) -> None:
    rounds = await rounds_of(kind, tmp_path)

    versions = [watched.version for watched in rounds]
    assert versions == sorted(set(versions) & set(range(0, STEPS, EVERY))), "of those due during a round, the newest"
    assert versions[0] == 0 < versions[-1]
    assert_pinned(rounds)
    assert {(watched.servers, watched.reserved) for watched in rounds} == {(1, 1)}
    assert sum(watched.steps for watched in rounds) > 0
    assert max(watched.lag for watched in rounds) <= EVERY


async def test_a_server_of_another_party_evaluates_the_version_that_it_serves(tmp_path: Path) -> None:
    rounds = await rounds_of("openai_tokens", tmp_path)

    assert [watched.version for watched in rounds] == [0, EVERY]
    assert_pinned(rounds)
    assert {(watched.servers, watched.reserved) for watched in rounds} == {(0, 1)}
