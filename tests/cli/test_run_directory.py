import json
import os
import stat
from pathlib import Path

import pytest

from astraflow.cli.run_directory import RunDirectory, storage_error
from astraflow.contract.errors import InvalidInput, StorageFull
from astraflow.runtime.folders.launch_facts import LaunchFacts, read_launch
from astraflow.runtime.folders.run_folders import active_runs, runs_folder
from astraflow.weights.signing import SigningKey
from tests.errors import raises_code

RECIPE = json.dumps({"name": "smoke", "seed": 3, "stop": {"steps": 5}})


def opened(path: Path | None = None, recipe: str = RECIPE):  # type: ignore[no-untyped-def]  # returns a context manager
    return RunDirectory.opened(path, name="smoke", seed=3, recipe=recipe)


def test_a_run_directory_records_recipe_seed_and_commit() -> None:
    with opened() as directory:
        facts = directory.facts
        assert directory.path.parent == runs_folder().resolve()
        assert (facts.recipe, facts.seed, facts.pid) == ("smoke", 3, os.getpid())
        assert facts.run.startswith("smoke-")
        assert len(facts.commit.rstrip("+")) in (0, 40)
        assert directory.recipe_file.read_text() == RECIPE


def test_the_token_file_is_private() -> None:
    with opened() as directory:
        assert stat.S_IMODE(directory.token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
        assert len(directory.token) >= 32


def test_a_resumed_run_keeps_its_name_and_token(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as directory:
        token, run = directory.token, directory.facts.run
    longer = RECIPE.replace("5", "50")
    with opened(tmp_path / "run", longer) as directory:
        assert (directory.token, directory.facts.run) == (token, run)
        assert directory.recipe_file.read_text() == longer


@pytest.mark.parametrize("content", [b'{"name": "smo', b"[]", b"null", b"", b"\xff\xfe"])
def test_a_damaged_recipe_is_told_and_can_be_removed(tmp_path: Path, content: bytes) -> None:
    with opened(tmp_path / "run") as directory:
        directory.recipe_file.write_bytes(content)
    with raises_code(InvalidInput, "run_directory.damaged_recipe", "recipe.json"), opened(tmp_path / "run"):
        pass
    directory.recipe_file.unlink()
    with opened(tmp_path / "run") as directory:
        assert directory.recipe_file.read_text() == RECIPE


def test_an_empty_token_is_replaced(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as directory:
        directory.token_file.write_text("\n")
    with opened(tmp_path / "run") as directory:
        assert len(directory.token) >= 32


def checkpoint(run: Path, step: int = 0) -> None:
    (run / "trainer-solver" / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)


def test_a_folder_of_another_recipe_is_refused_with_the_settings_that_differ(tmp_path: Path) -> None:
    stored = {"seed": 3, "stop": {"steps": 5}, "nodes": {"count": 2}, "a": {"rate": 0.1, "path": "x" * 99}}
    wanted = {"seed": 4, "stop": {"steps": 6}, "nodes": {"count": 3}, "a": {"rate": 0.2}, "b": {}}
    with opened(tmp_path / "run", json.dumps(stored)):
        checkpoint(tmp_path / "run")
    with (
        raises_code(
            InvalidInput, "run_directory.other_settings", "seed was 3, is 4", "a.rate was 0.1, is 0.2"
        ) as caught,
        opened(tmp_path / "run", json.dumps(wanted)),
    ):
        pass
    assert not any(text in str(caught.value) for text in ("stop", "nodes.count", "x" * 50))


def test_a_run_continues_with_another_number_of_nodes(tmp_path: Path) -> None:
    recipes = [json.dumps({"nodes": {"count": count, "engine": {}}, "stop": {"steps": count}}) for count in (2, 3)]
    with opened(tmp_path / "run", recipes[0]):
        checkpoint(tmp_path / "run", step=7)
    with opened(tmp_path / "run", recipes[1]) as directory:
        assert directory.recipe_file.read_text() == recipes[1]


def test_a_continued_run_records_its_changes_of_settings_and_keeps_its_lineage(tmp_path: Path) -> None:
    def launched(rate: float, *overrides: str, **facts: object) -> None:
        recipe = json.dumps({"policies": {"solver": {"backend": {"learning_rate": rate}}}})
        launch = LaunchFacts(recipe="smoke", overrides=overrides, launched_at=rate, **facts)
        with RunDirectory.opened(tmp_path / "run", name="smoke", seed=3, recipe=recipe, launch=launch):
            pass

    launched(0.1, "a=1", parent="other", parent_step=4)
    checkpoint(tmp_path / "run", step=7)
    launched(0.1, "a=1")
    launched(0.2, "a=1", "b=2")
    facts = read_launch(tmp_path / "run")
    assert facts is not None
    assert (facts.overrides, facts.parent, facts.parent_step, facts.launched_at) == (("a=1", "b=2"), "other", 4, 0.1)
    assert [(change.step, change.overrides) for change in facts.changes] == [(7, ("a=1", "b=2"))]


def test_a_run_without_a_checkpoint_takes_other_settings_and_forgets_the_earlier_dataset(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as directory:
        token = directory.token
        (directory.path / "dataflow").mkdir()
        (directory.path / "trainer-solver" / "checkpoints").mkdir(parents=True)
    with opened(tmp_path / "run"):
        assert (tmp_path / "run" / "dataflow").exists(), "the settings are the same"
    with opened(tmp_path / "run", '{"name": "x"}') as directory:
        assert (directory.recipe_file.read_text(), directory.token) == ('{"name": "x"}', token)
        assert not (directory.path / "dataflow").exists()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "run"),
        raises_code(InvalidInput, "run_directory.active", "run'"),
        opened(tmp_path / "run"),
    ):
        pass


def test_active_runs_are_found_in_any_directory(tmp_path: Path) -> None:
    with opened(), opened(tmp_path / "elsewhere"):
        assert {directory.path.resolve().name == "elsewhere" for directory in active_runs()} == {True, False}
    assert active_runs() == []


def test_facts_and_process_events_are_stored() -> None:
    with opened() as directory:
        directory.update_facts(dataflow="127.0.0.1:7")
        directory.record_process_event("node-1 started", {"node-1": 77})
        assert directory.facts.dataflow == "127.0.0.1:7"
        assert json.loads((directory.path / "processes.json").read_text()) == {"node-1": 77}
        assert "node-1 started" in directory.log("supervisor").read_text()


def test_a_folder_that_is_not_a_run_directory_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "run_folder.invalid"):
        _ = RunDirectory(tmp_path).facts


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_code(InvalidInput, "storage.unusable"), opened(tmp_path / "file" / "run"):
        pass


def test_a_full_disk_and_a_denied_path_are_different_errors() -> None:
    full = storage_error(OSError(28, "No space left on device"), "the run directory /x")
    wrong = storage_error(OSError(13, "Permission denied", "/x/run.json"), "the run directory /x")
    assert isinstance(full, StorageFull)
    assert wrong.code == "storage.unusable"
    assert "/x/run.json" in str(wrong)


def test_a_run_signs_its_versions_with_a_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as first:
        file, key = first.signing_key_file, first.weights_key
        assert file is not None
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert str(SigningKey.read(file).public) == key
    with opened(tmp_path / "run") as again:
        assert again.weights_key == key


def test_a_run_started_without_a_key_resumes_without_one(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as first:
        for path in (first.path / "weights.key", first.path / "weights.pub"):
            path.unlink()
    with opened(tmp_path / "run") as again:
        assert (again.signing_key_file, again.weights_key) == (None, "")
