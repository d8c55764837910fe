import json
import os
import stat
from pathlib import Path

import pytest

from astraflow.cli.rundir import RunDirectory, explained
from astraflow.contract.errors import InvalidInput, StorageFull
from astraflow.runtime.runs import active_runs, runs
from astraflow.weights.signing import SigningKey

RECIPE = json.dumps({"name": "smoke", "seed": 3, "stop": {"steps": 5}})


def opened(path: Path | None = None, recipe: str = RECIPE):  # type: ignore[no-untyped-def]  # a context manager of its own
    return RunDirectory.opened(path, name="smoke", seed=3, recipe=recipe)


def test_a_run_directory_records_what_makes_the_run_repeatable() -> None:
    with opened() as directory:
        facts = directory.facts
        assert directory.path.parent == runs().resolve()
        assert (facts.recipe, facts.seed, facts.pid) == ("smoke", 3, os.getpid())
        assert facts.run.startswith("smoke-")
        assert len(facts.commit.rstrip("+")) in (0, 40)
        assert directory.recipe_file.read_text() == RECIPE


def test_the_token_is_for_its_owner_only() -> None:
    with opened() as directory:
        assert stat.S_IMODE(directory.token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
        assert len(directory.token) >= 32


def test_a_run_that_goes_on_keeps_its_name_and_token(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as directory:
        token, run = directory.token, directory.facts.run
    longer = RECIPE.replace("5", "50")
    with opened(tmp_path / "run", longer) as directory:
        assert (directory.token, directory.facts.run) == (token, run)
        assert directory.recipe_file.read_text() == longer


def test_a_folder_of_another_recipe_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "run"):
        pass
    with pytest.raises(InvalidInput, match="holds a run of other settings"), opened(tmp_path / "run", '{"name": "x"}'):
        pass


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "run"),
        pytest.raises(InvalidInput, match=r"a run is active in .*run: stop it"),
        opened(tmp_path / "run"),
    ):
        pass


def test_active_runs_are_found_wherever_they_are(tmp_path: Path) -> None:
    with opened(), opened(tmp_path / "elsewhere"):
        assert {directory.path.resolve().name == "elsewhere" for directory in active_runs()} == {True, False}
    assert active_runs() == []


def test_notes_are_kept() -> None:
    with opened() as directory:
        directory.note(dataflow="127.0.0.1:7")
        directory.note_happening("node-1 started", {"node-1": 77})
        assert directory.facts.dataflow == "127.0.0.1:7"
        assert json.loads((directory.path / "processes.json").read_text()) == {"node-1": 77}
        assert "node-1 started" in directory.log("supervisor").read_text()


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a run directory"):
        _ = RunDirectory(tmp_path).facts


def test_a_place_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"cannot be used: Not a directory"), opened(tmp_path / "file" / "run"):
        pass


def test_a_full_disk_is_told_from_a_wrong_place() -> None:
    full = explained(OSError(28, "No space left on device"), "the run directory /x")
    wrong = explained(OSError(13, "Permission denied", "/x/run.json"), "the run directory /x")
    assert isinstance(full, StorageFull)
    assert str(wrong) == "the run directory /x cannot be used: Permission denied (/x/run.json)"


def test_a_run_signs_its_versions_with_a_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as first:
        file, key = first.signing_key_file, first.weights_key
        assert file is not None
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert str(SigningKey.read(file).public) == key
    with opened(tmp_path / "run") as again:
        assert again.weights_key == key


def test_a_run_that_began_without_a_key_goes_on_without_one(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as first:
        for path in (first.path / "weights.key", first.path / "weights.pub"):
            path.unlink()
    with opened(tmp_path / "run") as again:
        assert (again.signing_key_file, again.weights_key) == (None, "")
