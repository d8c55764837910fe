"""What is written of an evaluation."""

import json
from pathlib import Path

from maintainer.evals.adversarial import Encounter
from maintainer.evals.evaluation import Evaluated
from maintainer.evals.leaderboard import NO_MODEL, line, page, table, write
from maintainer.evals.scoring import Score
from maintainer.evals.usage import Use
from tests.maintainer.evals.parts import duel

FOUND = Evaluated(
    model="somebody",
    is_simulated=True,
    scores=(Score(duels=(duel(10.5, use=Use(cited=2, cited_wrong=1, calls=4)), duel(10.5, flaps=1, seed=2))),),
)


def test_a_leaderboard_is_for_programs_and_for_people(tmp_path: Path) -> None:
    encounters = [Encounter(seed=1, violations=(), calls=3, changes=2)]
    write(tmp_path / "deep" / "board.json", [FOUND], seeds=(1, 2), encounters=encounters)
    said = json.loads((tmp_path / "deep" / "board.json").read_text())
    assert said["lines"][0]["passed"] == 0
    assert said["seeds"] == [1, 2]
    assert said["encounters"] == {"played": 1, "changes": 2, "violations": 0}
    (case,) = said["cases"]["somebody"]
    assert case["ratios"] == [1.05, 1.05]
    assert len(case["objections"]) == 3
    assert "| somebody (stand-in) | 0 of 1 | 1.050, 1.050 |" in (tmp_path / "deep" / "board.md").read_text()


def test_a_board_says_that_no_model_was_run_or_which_ones_are_none() -> None:
    model = Evaluated(model="a model", is_simulated=False, scores=FOUND.scores, stopped="5 minutes are over")
    assert NO_MODEL in page([FOUND], seeds=(1, 2))
    both = page([FOUND, model], seeds=(1, 2))
    assert NO_MODEL not in both
    assert "stand-ins are scripted" in both
    assert "a model was stopped after 1 cases: 5 minutes are over." in both
    assert "| a model | 0 of 1" in table([line(model)])
