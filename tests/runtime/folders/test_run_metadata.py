"""Metadata of runs: validated, shared between writers, and kept when it cannot be read."""

import threading
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_metadata import (
    METADATA,
    RunMetadata,
    change_metadata,
    read_metadata,
)


def test_a_run_without_metadata_has_empty_fields(tmp_path: Path) -> None:
    assert read_metadata(tmp_path) == RunMetadata()


def test_a_change_keeps_the_other_fields_and_is_private(tmp_path: Path) -> None:
    change_metadata(tmp_path, title="  A title ", tags=("b", "a", "b"))

    metadata = change_metadata(tmp_path, note="first\nsecond", is_starred=True)

    assert metadata == read_metadata(tmp_path)
    assert (metadata.title, metadata.tags, metadata.note) == ("A title", ("a", "b"), "first\nsecond")
    assert (tmp_path / METADATA).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        {"title": "two\nlines"},
        {"title": "x" * 121},
        {"note": "a\x00b"},
        {"tags": ("two words",)},
        {"tags": ("a,b",)},
        {"tags": tuple(f"tag{number}" for number in range(21))},
        {"colour": "red"},
    ],
)
def test_invalid_metadata_is_refused_and_not_written(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        change_metadata(tmp_path, **change)

    assert refusal.value.code == "config.invalid"
    assert read_metadata(tmp_path) == RunMetadata()


def test_a_damaged_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / METADATA).write_text('{"title": ')

    with pytest.raises(InvalidInput):
        change_metadata(tmp_path, title="new")

    assert (tmp_path / METADATA).read_text() == '{"title": '


def test_concurrent_changes_of_different_fields_are_all_kept(tmp_path: Path) -> None:
    changes: list[dict[str, object]] = [{"title": "t"}, {"note": "n"}, {"group": "g"}, {"is_starred": True}]
    writers = [threading.Thread(target=change_metadata, args=(tmp_path,), kwargs=change) for change in changes]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert read_metadata(tmp_path) == RunMetadata(title="t", note="n", group="g", is_starred=True)
