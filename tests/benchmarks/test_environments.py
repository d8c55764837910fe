"""The benchmarks of environments and of the search count what they ran."""

import asyncio

import pytest

from benchmarks import environments, search

COSTLY = ("alfworld", "scienceworld")
"""Environments with processes that take tens of seconds to start. `tests/environments` plays them in each run."""


@pytest.mark.long
@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(subject, id=subject.name, marks=[pytest.mark.long] if subject.name.startswith(COSTLY) else [])
        for subject in environments.SUBJECTS
    ],
)
def test_every_environment_is_measured(subject: environments.Subject) -> None:
    figures = asyncio.run(environments.measure(subject, seconds=0.05))
    assert min(figures.serial_per_s, figures.at_once_per_s) > 0
    assert 0 < figures.act_ms[0] <= figures.act_ms[1]
    assert environments.table([figures]).count("\n") == 2


@pytest.mark.long
def test_games_are_measured() -> None:
    figures = asyncio.run(environments.measure_game("ConnectFour-v0", seconds=0.05))
    assert min(figures.serial_per_s, figures.at_once_per_s) > 0


def test_small_corpora_are_measured() -> None:
    figures = search.measure(documents=300, queries=20)
    assert figures.documents == 300
    assert 0 < figures.process_ms[0] <= figures.process_ms[1]


@pytest.mark.long
def test_a_query_in_a_million_documents_takes_20_ms() -> None:
    figures = search.measure(documents=1_000_000, queries=500)
    assert figures.process_ms[1] <= 20, figures
