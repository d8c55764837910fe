"""The safetensors library reads the file, whether a version arrived in full or as a delta."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Dtype
from astraflow.weights import shared_memory
from astraflow.weights.tensors import SnapshotTensors, VerifiedWeights, tensor_bits
from astraflow.weights.transfer.safetensors_file import SafetensorsFile
from tests.weights.versions import history, layout, snapshot

UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SafetensorsFile]:
    with SafetensorsFile(tmp_path / "model.safetensors") as safetensors_file:
        yield safetensors_file


def whole(tensors: SnapshotTensors, version: int = 0) -> VerifiedWeights:
    manifest, buffer = layout(tensors, version)
    return VerifiedWeights(manifest=manifest, buffer=buffer)


def step(before: VerifiedWeights, tensors: SnapshotTensors) -> VerifiedWeights:
    """Returns a version as applying a delta produces it."""
    now = whole(tensors, before.manifest.version + 1)
    changes = {
        spec.name: np.flatnonzero(tensor_bits(spec, before.buffer) != tensor_bits(spec, now.buffer))
        for spec in now.manifest.tensors
    }
    return replace(now, base=before.manifest.version, changes=changes)


def assert_reads(path: Path, weights: VerifiedWeights) -> None:
    with safe_open(path, "pt") as opened:
        assert set(opened.keys()) == {spec.name for spec in weights.manifest.tensors}
        assert opened.metadata()["version"] == str(weights.manifest.version)
        assert opened.metadata()["root_hash"] == weights.manifest.root_hash.hex()
        for spec in weights.manifest.tensors:
            read_tensor = opened.get_tensor(spec.name)
            assert tuple(read_tensor.shape) == spec.shape
            bits = read_tensor.flatten().view(UNSIGNED[spec.dtype.size_bytes]).numpy()
            np.testing.assert_array_equal(bits, tensor_bits(spec, weights.buffer), err_msg=spec.name)


def test_the_library_reads_every_type_and_shape(file: SafetensorsFile) -> None:
    weights = whole(snapshot())
    file.stage(weights)
    assert_reads(file.path, weights)
    assert file.version == 0


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(ways=st.lists(st.sampled_from(["step", "whole", "skip"]), min_size=1, max_size=5))
def test_the_file_has_the_last_version_after_any_updates(
    tmp_path_factory: pytest.TempPathFactory, ways: list[str]
) -> None:
    snapshots = history(len(ways) + 1)
    current = whole(snapshots[0])
    with SafetensorsFile(tmp_path_factory.mktemp("file") / "model.safetensors") as file:
        file.stage(current)
        for way, tensors in zip(ways, snapshots[1:], strict=True):
            current = step(current, tensors)
            if way == "whole":
                file.stage(replace(current, base=None, changes=None))
            elif way == "step":
                file.stage(current)
        if ways[-1] == "skip":
            file.stage(current)
        assert_reads(file.path, current)


def test_a_step_writes_only_changed_bytes(file: SafetensorsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = history(2)
    before = whole(first)
    file.stage(before)
    inode = file.path.stat().st_ino
    now = step(before, second)
    assert now.changes is not None
    beside = now.manifest.tensors[0].name
    bits = np.setdiff1d(np.arange(now.manifest.tensors[0].elements), now.changes[beside])[:1]
    untouched = replace(now, buffer=now.buffer.copy())
    tensor_bits(now.manifest.tensors[0], untouched.buffer)[bits] ^= 1  # only listed changes are read
    file.stage(untouched)
    assert_reads(file.path, now)
    assert file.path.stat().st_ino == inode


def test_tensor_data_starts_at_a_page(file: SafetensorsFile) -> None:
    file.stage(whole(snapshot()))
    head = file.path.read_bytes()[:8]
    assert (8 + int.from_bytes(head, "little")) % 4096 == 0


def test_changed_tensors_create_a_new_file(file: SafetensorsFile) -> None:
    file.stage(whole(snapshot()))
    other = whole({"w": (Dtype.FLOAT32, (2,), np.ones(2, dtype="<u4"))}, 1)
    file.stage(other)
    assert_reads(file.path, other)


def test_the_file_is_unreadable_while_a_version_is_staged(
    file: SafetensorsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = history(2)
    before = whole(first)
    file.stage(before)

    def is_absent(*arguments: object, **named: object) -> None:
        with pytest.raises((FileNotFoundError, SafetensorError)):
            safe_open(file.path, "pt")
        raise CorruptData("so it is not there afterwards either")

    with monkeypatch.context() as patch:
        patch.setattr("astraflow.weights.transfer.safetensors_file.verify", is_absent)
        with pytest.raises(CorruptData):
            file.stage(step(before, second))
    assert not file.path.exists()
    assert file.version is None
    file.stage(step(before, second))
    assert_reads(file.path, step(before, second))


def test_foreign_writes_are_detected_and_repaired(file: SafetensorsFile) -> None:
    first, second = history(2)
    before = whole(first)
    file.stage(before)
    with file.path.open("r+b") as opened:
        opened.seek(-3, 2)
        opened.write(b"???")
    now = step(before, second)
    file.stage(now)
    assert_reads(file.path, now)


def test_closing_removes_the_file(file: SafetensorsFile) -> None:
    file.stage(whole(snapshot()))
    data = file.path.resolve()
    file.close()
    assert not file.path.exists()
    assert not data.exists()
    assert file.version is None


@pytest.mark.long
def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from astraflow.weights.transfer.safetensors_file import SafetensorsFile
from tests.weights.transfer.test_safetensors_file import snapshot, whole
file = SafetensorsFile(Path(sys.argv[1]))
file.stage(whole(snapshot()))
os._exit(9)
"""
    path = tmp_path / "model.safetensors"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.is_symlink()
    data = path.readlink()
    shared_memory.remove_unused_buffers()
    assert not data.exists()
    with SafetensorsFile(path) as file:
        file.stage(whole(snapshot(), 1))
        assert_reads(path, whole(snapshot(), 1))


def test_files_of_different_policies_are_separate(tmp_path: Path) -> None:
    with SafetensorsFile(tmp_path / "one") as first, SafetensorsFile(tmp_path / "two") as second:
        first.stage(whole(snapshot(1)))
        second.stage(whole(snapshot(2), Version(5)))
        assert_reads(first.path, whole(snapshot(1)))
        assert_reads(second.path, whole(snapshot(2), 5))
