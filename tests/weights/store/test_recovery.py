import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData, InvalidInput, UnknownPolicy
from astraflow.weights.config import WeightsConfig
from tests.errors import raises_code
from tests.weights.stored_versions import fetched_manifest, names, open_test_store, put_all, put_full
from tests.weights.versions import POLICY, history, layout

CONFIG = WeightsConfig(retained_versions=4, full_snapshot_every=3)
SNAPSHOTS = history(6)


@pytest.fixture
def stored_run(tmp_path: Path) -> Path:
    """Directory of a store with versions 0 to 5; 0 and 3 are anchors."""
    with open_test_store(tmp_path, CONFIG) as store:
        put_all(store, SNAPSHOTS)
    assert [name for name in names(tmp_path) if name.endswith(".full")] == ["0000000000.full", "0000000003.full"]
    return tmp_path


def _newest(directory: Path) -> int | None:
    """Returns the newest version that can be fetched after a restart, verified."""
    with open_test_store(directory, CONFIG) as store:
        if not store.notices(POLICY):
            return None
        manifest = fetched_manifest(store)
        assert manifest == layout(SNAPSHOTS[manifest.version], manifest.version)[0]
        for notice in store.notices(POLICY):
            with suppress(CorruptData):  # readers detect damage in old files
                assert (
                    fetched_manifest(store, want=notice.version) == layout(SNAPSHOTS[notice.version], notice.version)[0]
                )
        return int(manifest.version)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_every_version_is_restored_after_a_restart(stored_run: Path) -> None:
    assert _newest(stored_run) == 5
    with open_test_store(stored_run, CONFIG) as store:
        assert [notice.version for notice in store.notices(POLICY)] == [0, 1, 2, 3, 4, 5]


def test_unfinished_files_of_a_crash_are_removed(stored_run: Path) -> None:
    folder = stored_run / POLICY
    before = names(stored_run)
    (folder / "0123456789abcdef.part").write_bytes(b"half a file")
    (folder / "0000000006.delta").write_bytes(b"a whole file whose record was never written")

    assert _newest(stored_run) == 5
    assert names(stored_run) == before


@pytest.mark.parametrize("damage", [_cut, _flip], ids=["torn", "damaged"])
@pytest.mark.parametrize(
    ("file", "newest"),
    [
        ("0000000005.delta", 4),
        ("0000000004.delta", 3),
        ("0000000003.full", 5),
        ("0000000005.record", 4),
        ("0000000003.record", 2),
    ],
)
def test_a_damaged_file_is_set_aside_and_never_served(
    stored_run: Path, damage: Callable[[Path], None], file: str, newest: int
) -> None:
    damage(stored_run / POLICY / file)

    assert _newest(stored_run) == newest
    assert _newest(stored_run) == newest
    assert f"{file}.damaged" in names(stored_run)


def test_folders_that_are_no_policies_are_left_alone(stored_run: Path) -> None:
    for name in ("lost+found", ".Trash-0", "%ff"):
        (stored_run / name).mkdir()
    assert _newest(stored_run) == 5
    assert (stored_run / "lost+found").is_dir()


def test_a_missing_file_is_treated_like_a_damaged_one(stored_run: Path) -> None:
    (stored_run / POLICY / "0000000005.delta").unlink()

    assert _newest(stored_run) == 4


def test_a_policy_without_readable_versions_is_unknown(stored_run: Path) -> None:
    for path in (stored_run / POLICY).glob("*.full"):
        _cut(path)

    assert _newest(stored_run) is None
    with open_test_store(stored_run, CONFIG) as store, pytest.raises(UnknownPolicy):
        store.plan(POLICY, have=None, want=None)


def test_a_trainer_can_publish_after_versions_were_damaged(stored_run: Path) -> None:
    _flip(stored_run / POLICY / "0000000004.delta")
    with open_test_store(stored_run, CONFIG) as store:
        with raises_code(InvalidInput, "weights.version_out_of_order", "version is 4"):
            put_full(store, SNAPSHOTS[0], 9)

        assert put_full(store, SNAPSHOTS[0], 6)

        assert fetched_manifest(store) == layout(SNAPSHOTS[0], 6)[0]


def test_a_damaged_old_delta_does_not_affect_the_newest_version(stored_run: Path) -> None:
    _cut(stored_run / POLICY / "0000000001.delta")

    with open_test_store(stored_run, CONFIG) as store:
        assert [notice.version for notice in store.notices(POLICY)] == [0, 3, 4, 5]
        assert fetched_manifest(store) == layout(SNAPSHOTS[5], 5)[0]


def test_a_lower_limit_of_uploads_leaves_stored_versions(stored_run: Path) -> None:
    before = names(stored_run)

    with open_test_store(stored_run, CONFIG.model_copy(update={"max_version_bytes": 1})) as store:
        assert [notice.version for notice in store.notices(POLICY)] == [0, 1, 2, 3, 4, 5]
        assert fetched_manifest(store) == layout(SNAPSHOTS[5], 5)[0]
        with raises_code(CorruptData, "weights.invalid_manifest", "impossible"):
            put_full(store, SNAPSHOTS[0], 6)

    assert names(stored_run) == before


def test_versions_of_more_than_ten_digits_are_restored_in_order(tmp_path: Path) -> None:
    first = 10**10 - 2
    with open_test_store(tmp_path, CONFIG) as store:
        put_all(store, SNAPSHOTS, first=first)
        before = [notice.version for notice in store.notices(POLICY)]

    with open_test_store(tmp_path, CONFIG) as store:
        assert [notice.version for notice in store.notices(POLICY)] == before == list(range(first, first + 6))
        assert fetched_manifest(store) == layout(SNAPSHOTS[5], first + 5)[0]


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_no_wrong_version_is_served_after_any_damage(stored_run: Path, data: st.DataObject) -> None:
    copy = stored_run.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(stored_run, copy)
    damages: list[Callable[[Path], None]] = [_cut, _flip, Path.unlink]
    for name in data.draw(st.lists(st.sampled_from(names(copy)), max_size=3, unique=True)):
        data.draw(st.sampled_from(damages))(copy / POLICY / name)

    newest = _newest(copy)

    assert newest is None or 0 <= newest <= 5
