"""The sizer decides as recorded: no change of measurements or decisions without notice."""

import json

import pytest

from tests.scaling.golden_decisions import CASES, FILE, decisions

STORED = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", CASES)
def test_measurements_and_decisions_match_the_recorded_ones(name: str) -> None:
    for tick, ((words, figures), (stored_words, stored_figures)) in enumerate(
        zip(decisions(CASES[name]), STORED[name], strict=True)
    ):
        assert (tick, words) == (tick, stored_words)
        assert figures == pytest.approx(stored_figures, abs=0.001), tick
