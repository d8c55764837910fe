"""`astraflow check reward|environment|tool|workflow`: a table and an exit code."""

import json

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.contract.errors import InvalidInput
from astraflow.recipe.files import EXAMPLES, PACKAGED

LETTERS = json.dumps({"kind": "letters"})
CRAFTING = json.dumps({"kind": "textcraft", "size": 3})


@pytest.mark.parametrize(
    ("arguments", "promise"),
    [
        (["reward", "exact_match", "--dataset", LETTERS], "gives a finite score"),
        (["environment", "textcraft", "--dataset", CRAFTING], "is won by the expert"),
        (["tool", "calculator"], "answers wrong arguments"),
        (
            ["workflow", "act", "--dataset", CRAFTING, "--set", "environment={kind='textcraft'}", "--reply", "look"],
            "returns valid trajectories",
        ),
    ],
    ids=["reward", "environment", "tool", "workflow"],
)
def test_a_built_in_plugin_passes(arguments: list[str], promise: str) -> None:
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exit_code == 0, result.output
    assert promise in result.output
    assert "0 failed" in result.output


def test_a_broken_promise_ends_with_exit_code_1() -> None:
    arguments = ["check", "reward", "exact_match", "--dataset", LETTERS, "--set", "answer_field=missing"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "InvalidInput" in result.output


def test_an_expert_of_a_plugin_file_wins() -> None:
    arguments = ["check", "environment", "guess_number", "--dataset", LETTERS, "--expert", "own_environment:bisect"]
    result = CliRunner().invoke(app, ["--plugin", str(PACKAGED / EXAMPLES / "own_environment.py"), *arguments])
    assert result.exit_code == 0, result.output
    assert "9 passed" in result.output


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["reward", "exact_match", "--dataset", "letters"], "check.invalid_dataset"),
        (["reward", "no_such", "--dataset", LETTERS], "plugin.unknown_kind"),
        (["environment", "textcraft", "--dataset", '{"kind": "no_such"}'], "plugin.unknown_kind"),
        (["environment", "textcraft", "--dataset", CRAFTING, "--expert", "no_such:expert"], "check.no_expert"),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], code: str) -> None:
    result = CliRunner().invoke(app, ["check", *arguments])
    assert isinstance(result.exception, InvalidInput)
    assert result.exception.code == code
