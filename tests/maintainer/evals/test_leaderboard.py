"""Files that an evaluation writes."""

import json
from pathlib import Path

from maintainer.evals.evaluation import EvaluationResult
from maintainer.evals.fuzzing import FuzzResult
from maintainer.evals.leaderboard import NO_MODEL, SOME_MODELS, line, page, table, write
from maintainer.evals.scoring.scoring import Score
from maintainer.evals.scoring.usage import MaintainerUse
from tests.maintainer.evals.parts import paired_result

FOUND = EvaluationResult(
    model="test-model",
    is_simulated=True,
    scores=(
        Score(
            paired_results=(
                paired_result(10.5, use=MaintainerUse(cited=2, cited_wrong=1, calls=4)),
                paired_result(10.5, flaps=1, seed=2),
            )
        ),
    ),
)


def test_a_leaderboard_is_written_as_json_and_as_markdown(tmp_path: Path) -> None:
    fuzz_cases = [FuzzResult(seed=1, violations=(), calls=3, changes=2)]
    write(tmp_path / "deep" / "board.json", [FOUND], seeds=(1, 2), fuzz_cases=fuzz_cases)
    board = json.loads((tmp_path / "deep" / "board.json").read_text())
    assert board["lines"][0]["passed"] == 0
    assert board["seeds"] == [1, 2]
    assert board["fuzz_cases"] == {"played": 1, "changes": 2, "violations": 0}
    (case,) = board["cases"]["test-model"]
    assert case["ratios"] == [1.05, 1.05]
    assert len(case["objections"]) == 3
    table_rows = [row.split(" | ") for row in (tmp_path / "deep" / "board.md").read_text().splitlines()]
    assert ["| test-model (simulated)", "0 of 1", "1.050, 1.050"] in [row[:3] for row in table_rows]


def test_a_leaderboard_marks_simulated_and_stopped_maintainers() -> None:
    model = EvaluationResult(model="a model", is_simulated=False, scores=FOUND.scores, stopped="5 minutes have passed")
    assert NO_MODEL in page([FOUND], seeds=(1, 2))
    both = page([FOUND, model], seeds=(1, 2))
    assert NO_MODEL not in both
    assert SOME_MODELS in both
    assert model.stopped in both
    assert "| a model | 0 of 1" in table([line(model)])
