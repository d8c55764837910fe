"""A fork begins in a kept checkpoint of its parent and is independent of it afterwards."""

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from astraflow.cli.run_directory import RunDirectory
from astraflow.cli.running.forks import find_fork
from astraflow.contract.batches import StepReport
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import BatchId, PolicyId, Version
from astraflow.recipe.config import Recipe, trainer_config
from astraflow.recipe.loading import Check, load_recipe, snapshot
from astraflow.trainer.checkpoints import (
    FRESH_OPTIMIZER,
    CheckpointIdentity,
    Checkpoints,
    TrainingProgress,
    read_manifest,
)
from astraflow.trainer.retention import Retention
from tests.errors import raises_code

STEPS = (3, 4)


def smoke(*overrides: str) -> Recipe:
    return load_recipe("smoke", overrides, check=Check.NONE)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    recipe = smoke()
    with RunDirectory.opened(tmp_path / "parent", name="smoke", seed=0, recipe=snapshot(recipe)) as directory:
        for policy in recipe.policies:
            save(directory.path, recipe, policy, STEPS)
        return directory.path


def save(run: Path, recipe: Recipe, policy: str, steps: Sequence[int]) -> None:
    config, folder = trainer_config(recipe, policy), run / f"trainer-{policy}" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    identity = CheckpointIdentity(policy=PolicyId(policy), model=config.model, backend=config.state_kind)
    for step in steps:
        times = {"wait_s": 0.0, "compute_s": 1.0, "publish_s": 0.0}
        batch = BatchId(f"{policy}:{step}")
        report = StepReport(batch=batch, policy=PolicyId(policy), version=Version(step), metrics={}, **times)
        progress = TrainingProgress(run="parent", step=step, report=report)
        Checkpoints(folder, identity, keep=Retention(newest=9)).save(
            progress, partial(write, step=step), published={"w": "BF16"}
        )


def write(state: Path, step: int) -> None:
    (state / "weights").write_text(f"weights {step}")


def first_checkpoint(run: Path) -> Path:
    (folder,) = run.glob("trainer-*/checkpoints/step-00000000")
    return folder


def test_a_fork_begins_at_step_0_of_a_run_of_its_own_with_the_files_of_the_checkpoint(
    parent: Path, tmp_path: Path
) -> None:
    fork = find_fork(str(parent), smoke(), step=3, keeps_optimizer=True)
    folder = fork.create(smoke("seed=5"), tmp_path / "child")
    manifest = read_manifest(first_checkpoint(folder))
    assert (manifest["run"], manifest["step"], manifest["report"]) == ("child", 0, None)
    assert manifest["published"] == {"w": "BF16"}
    assert (first_checkpoint(folder) / "state" / "weights").read_text() == "weights 3"
    facts = fork.facts
    assert (facts.parent, facts.parent_step, facts.has_fresh_optimizer) == ("parent", 3, False)


def test_a_fork_needs_no_space_and_stays_whole_without_its_parent(parent: Path, tmp_path: Path) -> None:
    folder = find_fork(str(parent), smoke(), step=None, keeps_optimizer=True).create(smoke(), tmp_path / "child")
    weights = first_checkpoint(folder) / "state" / "weights"
    assert weights.stat().st_nlink == 2
    shutil.rmtree(parent)
    assert weights.read_text() == "weights 4", "the newest step by default"
    read_manifest(first_checkpoint(folder))


def test_a_fork_with_a_fresh_optimizer_is_marked(parent: Path, tmp_path: Path) -> None:
    folder = find_fork(str(parent), smoke(), step=4, keeps_optimizer=False).create(smoke(), tmp_path / "child")
    assert FRESH_OPTIMIZER in read_manifest(first_checkpoint(folder))["files"]


def test_a_step_that_was_not_kept_is_refused_with_those_that_were(parent: Path) -> None:
    with raises_code(InvalidInput, "fork.step_not_kept", "3, 4"):
        find_fork(str(parent), smoke(), step=2, keeps_optimizer=True)


def test_a_fork_of_another_model_or_into_the_folder_of_a_run_is_refused(parent: Path, tmp_path: Path) -> None:
    recipe = smoke()
    (policy, *_) = recipe.policies
    fork = find_fork(str(parent), recipe, step=3, keeps_optimizer=True)
    with raises_code(InvalidInput, "fork.folder_in_use"):
        fork.create(recipe, parent)
    values = json.loads(snapshot(recipe))
    values["policies"][policy]["model"]["kind"] = "other"
    with raises_code(InvalidInput, "fork.other_model", policy):
        fork.create(Recipe.parse(values, where=""), tmp_path / "child")
    assert not (tmp_path / "child").exists()
