"""`astraflow doctor --model` makes the checks of trainer and engine, and says what they found."""

from pathlib import Path

import pytest
import torch

from astraflow.cli.checks.doctor import model_results
from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import Outcome
from astraflow.models import models
from tests.errors import raises_code

SMALL = {"kind": "tiny", "hidden_size": 16, "heads": 2, "key_value_heads": 1, "intermediate_size": 24, "layers": 2}


def folder_of(options: dict[str, object], home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(home))
    return models.build({**SMALL, **options}).prepare()


@pytest.mark.parametrize(("family", "batching"), [("qwen3", "batching packed; off by"), ("qwen35", "batching tree (")])
def test_a_model_has_its_batching_and_its_way_of_serving(
    family: str, batching: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, serving = model_results(folder_of({"family": family}, tmp_path, monkeypatch))

    assert training.outcome is serving.outcome is Outcome.PASSED
    assert training.detail.startswith(batching)
    assert serving.detail == "slots"


def test_weights_that_are_not_finite_fail_both_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of({}, tmp_path, monkeypatch)
    source = models.build({"kind": "huggingface", "path": str(folder)})
    model = source.load(folder)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    model.save_pretrained(folder)

    assert [result.outcome for result in model_results(folder)] == [Outcome.FAILED, Outcome.FAILED]


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "model.no_config"):
        model_results(tmp_path)
