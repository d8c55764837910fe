"""`astraflow chat` and `astraflow export` on runs: which checkpoint they take, and a conversation with a tiny model."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.cli.models.chat import ChatRequest, _prepared
from astraflow.cli.models.sources import find_checkpoints
from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code
from tests.trainer.test_export import masters, saved

__all__ = ["masters"]  # a fixture


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Folder of a run that trains two policies; `back` is asked by no workflow with one policy."""
    for policy in ("solver", "back"):
        (tmp_path / f"trainer-{policy}" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run.json").write_text("{}")
    workflow = {"kind": "single_turn", "policy": "solver", "system": "Be brief.", "max_new_tokens": 4}
    (tmp_path / "recipe.json").write_text(json.dumps({"flows": {"train": {"workflow": workflow}}}))
    return tmp_path


def test_the_policy_of_a_run_with_several_must_be_named(run: Path) -> None:
    with raises_code(InvalidInput, "export.unknown_policy"):
        find_checkpoints(str(run))
    with raises_code(InvalidInput, "export.unknown_policy"):
        find_checkpoints(str(run), "judge")


def test_a_policy_is_sampled_as_in_the_workflow_that_asks_it(run: Path) -> None:
    assert find_checkpoints(str(run), "solver").workflow_options()["system"] == "Be brief."
    assert find_checkpoints(str(run), "back").workflow_options() == {}


def test_a_run_is_found_by_its_name(
    run: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / "runs").mkdir()
    (home / "runs" / "mine").symlink_to(run)
    monkeypatch.setenv("ASTRAFLOW_HOME", str(home))
    assert find_checkpoints("mine", "solver").folder == home / "runs" / "mine" / "trainer-solver" / "checkpoints"


def test_a_source_without_a_model_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "export.unknown_source"):
        CliRunner().invoke(app, ["chat", str(tmp_path / "nothing")], catch_exceptions=False)


def test_lines_are_asked_as_the_policy_is_trained(run: Path, masters: Mapping[str, Tensor]) -> None:
    saved(run / "trainer-solver" / "checkpoints", masters)
    saved(run / "trainer-back" / "checkpoints", masters)
    scratch = run / "scratch"
    request = ChatRequest(source=str(run), policy="solver", version=1, given={}, keeps_turns=None, engine="local_torch")
    assert not _prepared(request, scratch).keeps_turns
    assert _prepared(replace(request, keeps_turns=True), run / "kept").keeps_turns
    assert _prepared(replace(request, policy="back"), run / "back").keeps_turns


def test_a_conversation_with_a_checkpoint_answers_each_line(run: Path, masters: Mapping[str, Tensor]) -> None:
    saved(run / "trainer-solver" / "checkpoints", masters)
    arguments = ["chat", str(run), "--policy", "solver", "--version", "1", "--conversation"]
    result = CliRunner().invoke(app, arguments, input="abc\n\nabc\n", catch_exceptions=False)
    title, *lines = result.output.splitlines()
    assert result.exit_code == 0
    assert "version 1" in title
    assert "new conversation" in lines
    assert len(lines) >= 3
