"""A store is killed at every point of its file operations: adoptions, anchors, retention passes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.weights.config import WeightsConfig
from astraflow.weights.shared_memory import SharedBuffer
from tests.fakes.crashes import Crash
from tests.weights.stored_versions import fetched_manifest, names, open_test_store, put_all, put_full, put_shared
from tests.weights.versions import POLICY, history, layout

CONFIG = WeightsConfig(retained_versions=3, full_snapshot_every=3)
SNAPSHOTS = history(7)
VERSIONS = [layout(tensors, version) for version, tensors in enumerate(SNAPSHOTS)]
CALLS = {os: ("open", "write", "fsync"), Path: ("replace", "unlink")}


class Death:
    """Kills the process at the n-th change to a file below `directory`; a write is half done by then.

    Later operations of the dead process have no effect.
    """

    def __init__(self, directory: Path, after: int) -> None:
        self._directory = directory
        self._left = after
        self._descriptors: set[int] = set()
        self.has_come = False

    @contextmanager
    def waiting(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patched:
            for owner, calls in CALLS.items():
                for call in calls:
                    patched.setattr(owner, call, self._replaced(call, getattr(owner, call)))
            yield

    def _replaced(self, call: str, real: Any) -> Any:
        def replaced(*arguments: Any, **named: Any) -> Any:
            if not self._concerns(arguments[0]):
                return real(*arguments, **named)
            if self._left == 0:
                if call == "write" and not self.has_come:
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                self.has_come = True
                raise Crash
            self._left -= 1
            result = real(*arguments, **named)
            if call == "open":
                self._descriptors.add(result)
            return result

        return replaced

    def _concerns(self, what: object) -> bool:
        if isinstance(what, int):
            return what in self._descriptors
        return self._directory in Path(str(what)).parents


def _check_kept(directory: Path, *, acknowledged: int, newest: int) -> None:
    """Checks that all acknowledged versions are present and correct after a restart, and that publishing continues."""
    with open_test_store(directory, CONFIG) as store:
        kept = [int(notice.version) for notice in store.notices(POLICY)]
        assert kept[-1] in {acknowledged, newest}
        assert set(range(max(0, acknowledged - CONFIG.retained_versions + 1), acknowledged + 1)) <= set(kept)
        for version in kept:
            assert fetched_manifest(store, want=version) == VERSIONS[version][0]
        assert [name for name in names(directory) if name.endswith((".damaged", ".part"))] == []
        for version in range(kept[-1] + 1, len(VERSIONS)):
            put_full(store, SNAPSHOTS[version], version)
        assert fetched_manifest(store) == VERSIONS[-1][0]


def _dies(directory: Path, version: int, point: int, monkeypatch: pytest.MonkeyPatch, *, is_shared: bool) -> bool:
    """Publishes one version and applies retention, with a crash at that point; returns whether it was reached."""
    death = Death(directory, after=point)
    manifest, bits = VERSIONS[version]
    buffer = SharedBuffer(manifest.size_bytes)
    buffer.buffer[:] = bits
    try:
        with open_test_store(directory, CONFIG) as store, death.waiting(monkeypatch), suppress(Crash):
            if is_shared:
                put_shared(store, manifest, buffer.file)
            else:
                put_full(store, SNAPSHOTS[version], version)
    finally:
        buffer.unlink()
    return death.has_come


@pytest.mark.parametrize("is_shared", [False, pytest.param(True, marks=pytest.mark.long)], ids=["sent", "adopted"])
@pytest.mark.parametrize(
    "version",
    [0, *(pytest.param(version, marks=pytest.mark.long) for version in (1, 3, 6))],
    ids=["first", "delta", "anchor", "retention"],
)
def test_no_acknowledged_version_is_lost_or_wrong_after_a_kill_at_any_point(
    tmp_path: Path, version: int, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makes version 3 an anchor; with version 6 as another one, retention removes versions 0 to 2."""
    points = 0
    while True:
        directory = tmp_path / str(points)
        with open_test_store(directory, CONFIG) as store:
            put_all(store, SNAPSHOTS[:version])
        if not _dies(directory, version, points, monkeypatch, is_shared=is_shared):
            break
        if version:
            _check_kept(directory, acknowledged=version - 1, newest=version)
        else:
            with open_test_store(directory, CONFIG) as store, suppress(InvalidInput):
                put_full(store, SNAPSHOTS[0], 0)
                assert fetched_manifest(store) == VERSIONS[0][0]
        points += 1
    assert points >= {0: 8, 1: 8, 3: 16, 6: 20}[version], "each step is a kill point"
