"""`astraflow new`: the created task is complete, and its names are its own."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.plugins import PLUGINS_VARIABLE
from tests.errors import raises_code

LOAD = (
    "from astraflow.recipe.loading import Check, load_recipe; own = load_recipe('.', check=Check.LIGHT); "
    "print(own.name, own.flows['train'].reward)"
)


def test_a_new_task_has_a_valid_recipe_and_its_tests_pass(tmp_path: Path) -> None:
    folder = tmp_path / "word-sort"
    new_result = CliRunner().invoke(app, ["new", "word-sort", "--to", str(folder)], catch_exceptions=False)
    assert new_result.exit_code == 0
    # In a process of its own, because a plugin stays registered.
    environment = {**os.environ, PLUGINS_VARIABLE: str(folder / "reward.py")}
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert loaded.stdout.split(maxsplit=1) == ["word-sort", "{'kind': 'word_sort'}\n"], loaded.stderr
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder))
    tested = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert tested.returncode == 0, tested.stdout
    texts = [file.read_text() for file in folder.iterdir() if file.is_file()]
    assert not [text for text in texts if "my_task" in text or "my-task" in text or "MyTask" in text]


@pytest.mark.parametrize(
    ("name", "code"),
    [("Word Sort", "new.invalid_name"), ("../x", "new.invalid_name"), ("exact-match", "new.name_in_use")],
)
def test_an_unusable_name_is_refused(tmp_path: Path, name: str, code: str) -> None:
    with raises_code(InvalidInput, code):
        CliRunner().invoke(app, ["new", name, "--to", str(tmp_path / "new")], catch_exceptions=False)
    assert not (tmp_path / "new").exists()


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "new.folder_in_use"):
        CliRunner().invoke(app, ["new", "word-sort", "--to", str(tmp_path)], catch_exceptions=False)


def test_a_recipe_for_an_agent_names_its_function(tmp_path: Path) -> None:
    agent = tmp_path / "shop.py"
    agent.write_text("client = create()\ndef reverse(text): ...\nasync def ask(question): ...\n")
    folder = tmp_path / "shop-agent"
    arguments = ["new", "shop-agent", "--to", str(folder), "--agent", f"{agent}:ask"]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    assert recipe["flows"]["train"]["workflow"]["program"] == {"kind": "callable", "function": "shop:ask"}
    assert "openai" not in str(recipe["name"]) + str(recipe["summary"])


@pytest.mark.parametrize(
    ("agent", "code"),
    [("shop.py:none", "new.no_function"), ("shop:ask", "new.no_agent"), ("nowhere.py:ask", "new.no_agent")],
)
def test_an_agent_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text("def ask(question): ...\n")
    with raises_code(InvalidInput, code):
        CliRunner().invoke(app, ["new", "shop-agent", "--agent", agent], catch_exceptions=False)
    assert not Path("shop-agent").exists()
