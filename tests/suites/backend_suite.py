"""Contract tests of every training backend."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from astraflow.contract.batches import Batch
from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import PolicyId, Version
from astraflow.trainer.backends.base import Backend
from astraflow.weights.tensors import build_layout
from tests.snapshots import Snapshot, snapshot_of


class BackendSuite:
    """Tests to inherit. Fixtures to provide: `build` (a fresh, deterministic backend) and `batches` (four or more)."""

    def test_a_step_returns_finite_metrics(self, build: Callable[[], Backend], batches: Sequence[Batch]) -> None:
        metrics = build().step(batches[0])
        assert metrics
        assert all(math.isfinite(value) for value in metrics.values()), metrics

    def test_the_same_seed_gives_the_same_weights(self, build: Callable[[], Backend]) -> None:
        assert_same(snapshot_of(build()), snapshot_of(build()))

    def test_a_snapshot_is_not_changed_by_the_next_step(
        self, build: Callable[[], Backend], batches: Sequence[Batch]
    ) -> None:
        backend = build()
        snapshot = snapshot_of(backend)
        before = {name: bits.copy() for name, (_, _, bits) in snapshot.tensors.items()}
        backend.step(batches[0])
        for name, (_, _, bits) in snapshot.tensors.items():
            np.testing.assert_array_equal(bits, before[name])

    def test_steps_change_the_weights(self, build: Callable[[], Backend], batches: Sequence[Batch]) -> None:
        backend = build()
        before = snapshot_of(backend)
        for batch in batches:
            backend.step(batch)
        after = snapshot_of(backend)
        assert any((before.tensors[name][2] != after.tensors[name][2]).any() for name in before.tensors)

    def test_a_snapshot_can_be_laid_out_for_publishing(self, build: Callable[[], Backend]) -> None:
        snapshot = snapshot_of(build())
        manifest, buffer = build_layout(
            snapshot.tensors, policy=PolicyId("solver"), version=Version(0), probe=snapshot.probe
        )
        assert buffer.nbytes == manifest.size_bytes > 0

    def test_a_snapshot_does_not_change_later_steps(
        self, build: Callable[[], Backend], batches: Sequence[Batch]
    ) -> None:
        with_snapshot, reference = build(), build()
        snapshot_of(with_snapshot)
        for backend in (with_snapshot, reference):
            backend.step(batches[0])
        assert_same(snapshot_of(with_snapshot), snapshot_of(reference))

    def test_a_restored_backend_continues_bit_for_bit(
        self, build: Callable[[], Backend], batches: Sequence[Batch], tmp_path: Path
    ) -> None:
        original, restored = build(), build()
        original.step(batches[0])
        original.step(batches[1])
        original.capture().write(tmp_path)
        restored.load(tmp_path)
        assert_same(snapshot_of(original), snapshot_of(restored))
        for backend in (original, restored):
            backend.step(batches[2])
            backend.step(batches[3])
        assert_same(snapshot_of(original), snapshot_of(restored))

    def test_saving_does_not_change_later_steps(
        self, build: Callable[[], Backend], batches: Sequence[Batch], tmp_path: Path
    ) -> None:
        saved, reference = build(), build()
        saved.capture().write(tmp_path)
        for backend in (saved, reference):
            backend.step(batches[0])
        assert_same(snapshot_of(saved), snapshot_of(reference))

    def test_a_damaged_checkpoint_is_refused_with_its_path(self, build: Callable[[], Backend], tmp_path: Path) -> None:
        build().capture().write(tmp_path)
        for path in tmp_path.rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(CorruptData, match=str(tmp_path)):
            build().load(tmp_path)


def assert_same(first: Snapshot, second: Snapshot) -> None:
    """Asserts equal names, types, shapes and bits, and equal probes."""
    assert list(first.tensors) == list(second.tensors)
    for name, (dtype, shape, bits) in first.tensors.items():
        assert (dtype, shape) == second.tensors[name][:2], name
        np.testing.assert_array_equal(_flat(bits), _flat(second.tensors[name][2]), err_msg=name)
    assert first.probe == second.probe


def _flat(bits: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    return bits.reshape(-1)
