"""The calibration report against hand-computed figures, and as a command."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards.calibration import ScoreBin, calibrate, read_examples
from tests.errors import raises_code

EXAMPLES = [("0.9", 1.0), ("0.6", 1.0), ("0.2", 1.0), ("0.7", 0.0), ("0.1", 0.0), ("x", 1.0)]


class Reads:
    """Scores the number in the completion."""

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> float:
        return float(completion)


def written(folder: Path, rows: list[tuple[str, float]]) -> Path:
    path = folder / "examples.jsonl"
    lines = [json.dumps({"question": "?", "answer": "a", "completion": text, "label": label}) for text, label in rows]
    path.write_text("\n".join(lines) + "\n\n")
    return path


@pytest.mark.anyio
async def test_the_report_counts_errors_in_both_directions(tmp_path: Path) -> None:
    report = await calibrate(Reads(), read_examples(written(tmp_path, EXAMPLES)))
    assert (report.examples, report.failures) == (6, {"ValueError": 1})
    assert report.accuracy == pytest.approx(3 / 5)
    assert report.false_accepts == pytest.approx(1 / 2)
    assert report.false_rejects == pytest.approx(1 / 3)
    assert report.mean_error == pytest.approx((-0.1 - 0.4 - 0.8 + 0.7 + 0.1) / 5)
    assert report.mean_absolute_error == pytest.approx(2.1 / 5)
    assert report.ranking == pytest.approx(4 / 6)
    assert report.bins[0] == ScoreBin(lowest=0.0, highest=0.2, examples=1, mean_score=0.1, mean_label=0.0)
    assert [entry.examples for entry in report.bins] == [1, 1, 2, 1]


@pytest.mark.anyio
async def test_rates_without_examples_are_absent() -> None:
    report = await calibrate(Reads(), [])
    assert (report.accuracy, report.ranking, report.bins) == (None, None, ())


@pytest.mark.parametrize("line", ["no json", '{"completion": "x"}', '{"completion": "x", "label": 2}', "[1]"])
def test_malformed_examples_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(line)
    with raises_code(InvalidInput, "calibration.invalid_examples"):
        read_examples(path)


def test_the_command_prints_the_report(tmp_path: Path) -> None:
    path = written(tmp_path, [("a", 1.0), ("b", 0.0)])
    result = CliRunner().invoke(app, ["calibrate", '{"kind": "exact_match"}', str(path)])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["accuracy"] == 1.0
    wrong = CliRunner().invoke(app, ["calibrate", "exact_match", str(path)])
    assert isinstance(wrong.exception, InvalidInput)
