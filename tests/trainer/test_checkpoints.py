"""Checkpoints are complete or absent, verified, and belong to the policy that loads them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.batches import StepReport
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import BatchId, PolicyId, Version
from astraflow.trainer.checkpoints import CheckpointIdentity, Checkpoints, TrainingProgress
from astraflow.trainer.retention import Retention
from tests.errors import raises_code
from tests.hostile.files import CHECKPOINTS, damage_manifest, flip_bit

IDENTITY = CheckpointIdentity(policy=PolicyId("solver"), model={"kind": "tiny", "layers": 2}, backend="local")


def progress(step: int) -> TrainingProgress:
    report = StepReport(
        batch=BatchId(f"solver:{step}"),
        policy=PolicyId("solver"),
        version=Version(step),
        wait_s=0.25,
        compute_s=1.5,
        publish_s=0.125,
        metrics={"loss": 0.1, "reward_mean": 1 / 3},
    )
    return TrainingProgress(run="run", step=step, report=report if step else None)


def writing(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights.bin").write_text(text)
        (folder / "empty").touch()

    return write


class Reader:
    """Records the contents that it loads."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, folder: Path) -> None:
        self.read.append((folder / "model" / "weights.bin").read_text())


def saved(folder: Path, *steps: int, keep: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(folder, IDENTITY, keep=Retention(newest=keep))
    for step in steps:
        checkpoints.save(progress(step), writing(f"weights {step}"))
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_the_newest_checkpoint_is_loaded(tmp_path: Path) -> None:
    reader = Reader()
    assert saved(tmp_path, 0, 1, 2).load(reader) == progress(2)
    assert reader.read == ["weights 2"]


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not ours")
    assert Checkpoints(tmp_path, IDENTITY, keep=Retention(newest=2)).load(Reader()) is None


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, *range(12), keep=3)
    assert names(tmp_path) == ["step-00000009", "step-00000010", "step-00000011"]


def test_old_checkpoints_are_removed_to_stay_below_a_size(tmp_path: Path) -> None:
    one_bytes = sum(path.stat().st_size for path in saved(tmp_path / "one", 1).folder.rglob("*") if path.is_file())
    checkpoints = Checkpoints(tmp_path, IDENTITY, keep=Retention(newest=9, max_bytes=2 * one_bytes + 50))
    for step in range(1, 5):
        checkpoints.save(progress(step), writing(f"weights {step}"))
    assert names(tmp_path) == ["one", "step-00000003", "step-00000004"]
    small = Checkpoints(tmp_path, IDENTITY, keep=Retention(newest=9, max_bytes=1))
    small.save(progress(5), writing("weights 5"))
    assert names(tmp_path) == ["one", "step-00000005"]
    assert small.load(Reader()) == progress(5)


def test_step_numbers_are_ordered_numerically(tmp_path: Path) -> None:
    reader = Reader()
    assert saved(tmp_path, 99_999_999, 100_000_000).load(reader) == progress(100_000_000)


@pytest.mark.parametrize("damage", CHECKPOINTS.cases())
def test_a_damaged_checkpoint_is_set_aside_and_the_previous_one_is_loaded(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    checkpoints, reader = saved(tmp_path, 1, 2), Reader()
    damage(tmp_path / "step-00000002")
    for _ in range(2):  # also after another restart
        assert checkpoints.load(reader) == replace(progress(1), damaged=2)
        assert names(tmp_path) == ["step-00000001", "step-00000002.damaged"]
    assert reader.read == 2 * ["weights 1"]
    checkpoints.save(progress(2), writing("weights 2, again"))
    assert checkpoints.load(reader) == replace(progress(2), damaged=2)


def test_of_damaged_checkpoints_that_training_has_passed_the_newest_is_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, keep=3)
    for name in ("step-00000003", "step-00000002"):
        flip_bit(tmp_path / name / "manifest.json")
    assert checkpoints.load(Reader()) == replace(progress(1), damaged=3)
    assert names(tmp_path) == ["step-00000001", "step-00000002.damaged", "step-00000003.damaged"]
    checkpoints.save(progress(4), writing("weights 4"))
    assert checkpoints.load(Reader()) == replace(progress(4), damaged=3)
    assert names(tmp_path) == ["step-00000001", "step-00000003.damaged", "step-00000004"]


def test_a_checkpoint_in_another_format_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr("astraflow.trainer.checkpoints.FORMAT", 9)
        checkpoints.save(progress(2), writing("future"))
    assert checkpoints.load(Reader()) == progress(1)


def test_a_state_the_backend_cannot_read_is_skipped(tmp_path: Path) -> None:
    def read(folder: Path) -> None:
        if "2" in (folder / "model" / "weights.bin").read_text():
            raise CorruptData("half a tensor")

    assert saved(tmp_path, 1, 2).load(read) == replace(progress(1), damaged=2)


def test_a_damaged_checkpoint_is_replaced_at_its_step(tmp_path: Path) -> None:
    checkpoints, reader = saved(tmp_path, 1, 2), Reader()
    damage_manifest(tmp_path / "step-00000002")
    checkpoints.save(progress(2), writing("weights 2, again"))
    assert checkpoints.load(reader) == progress(2)
    assert reader.read == ["weights 2, again"]


def test_without_a_valid_checkpoint_loading_is_an_error(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    for name in names(tmp_path):
        (tmp_path / name / "manifest.json").unlink()
    for _ in range(2):
        with raises_code(InvalidInput, "checkpoint.none_intact", "step-00000002, step-00000001"):
            checkpoints.load(Reader())


def test_without_a_valid_checkpoint_beside_one_set_aside_loading_is_an_error(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    flip_bit(tmp_path / "step-00000002" / "manifest.json")
    checkpoints.load(Reader())
    shutil.rmtree(tmp_path / "step-00000001")
    with raises_code(InvalidInput, "checkpoint.none_intact", "step-00000002.damaged"):
        checkpoints.load(Reader())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(IDENTITY, policy=PolicyId("verifier")), "its policy is 'solver', this trainer's is 'verifier'"),
        (
            replace(IDENTITY, model={"kind": "tiny", "layers": 3}),
            "its model is .*'layers': 2.*, this trainer's is .*'layers': 3",
        ),
        (replace(IDENTITY, backend="scripted"), "its backend is 'local'"),
    ],
)
def test_a_checkpoint_of_another_trainer_is_refused(tmp_path: Path, other: CheckpointIdentity, message: str) -> None:
    saved(tmp_path, 1)
    with raises_code(InvalidInput, "checkpoint.identity_mismatch"):
        Checkpoints(tmp_path, other, keep=Retention(newest=2)).load(Reader())


def test_a_model_spec_with_tuples_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    model: dict[str, Any] = {"kind": "tiny", "sizes": (1, 2)}
    identity = replace(IDENTITY, model=model)
    checkpoints = Checkpoints(tmp_path, identity, keep=Retention(newest=2))
    checkpoints.save(progress(1), writing("weights"))
    assert checkpoints.load(Reader()) == progress(1)


def test_a_failed_write_does_not_affect_other_checkpoints(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("ha")
        raise OSError(28, "No space left on device")

    checkpoints = saved(tmp_path, 1, 2)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(progress(3), fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
    assert checkpoints.load(Reader()) == progress(2)


def test_an_interrupted_write_is_removed(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".writing")
    with checkpoints.exclusive_lock():
        assert not (tmp_path / ".writing").exists()
        assert checkpoints.load(Reader()) == progress(1)


def test_two_trainers_do_not_share_a_folder(tmp_path: Path) -> None:
    first, second = (Checkpoints(tmp_path, IDENTITY, keep=Retention(newest=2)) for _ in range(2))
    with first.exclusive_lock(), raises_code(InvalidInput, "checkpoint.in_use"), second.exclusive_lock():
        pass
    with second.exclusive_lock():
        pass


def test_an_unusable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InvalidInput) as caught,
        Checkpoints(tmp_path / "file" / "checkpoints", IDENTITY, keep=Retention(newest=2)).exclusive_lock(),
    ):
        pass
    assert caught.value.code == "checkpoint.folder_unusable"


def test_the_manifest_is_plain_json(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    manifest = json.loads((tmp_path / "step-00000002" / "manifest.json").read_text())
    assert manifest["identity"] == {"policy": "solver", "model": {"kind": "tiny", "layers": 2}, "backend": "local"}
    assert manifest["report"]["batch"] == "solver:2"
    assert sorted(manifest["files"]) == ["empty", "model/weights.bin"]
