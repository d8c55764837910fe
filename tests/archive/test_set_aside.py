"""Files of data that was set aside: bounded, listed, exported, also when one of them is damaged."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astraflow.archive import set_aside as module
from astraflow.archive.set_aside import DamagedRecord, SetAsideBatch, SetAsideFiles, export
from astraflow.contract.batches import Row
from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from tests import make
from tests.errors import raises_code


def batch(step: int = 7, *, errors: tuple[str, ...] = ("IndexError: x",)) -> SetAsideBatch:
    return SetAsideBatch(
        batch=BatchId(f"solver:{step}"),
        policy=PolicyId("solver"),
        version=Version(step),
        errors=errors,
        groups=1,
        nodes={"node-1": 1},
    )


def row(*, metrics: dict[str, float] | None = None) -> Row:
    trajectory = replace(make.trajectory(), metrics=metrics or {})
    return Row(group=GroupId("train:0"), task=TaskId("train:0/0"), node=NodeId("node-1"), trajectory=trajectory)


def test_a_batch_is_listed_with_its_errors_and_exported_bit_for_bit(tmp_path: Path) -> None:
    files = SetAsideFiles(tmp_path / "aside")
    original = row()
    name = files.store_batch(batch(errors=("IndexError: x", "IndexError: x")), [original], at=5.0)
    (file,) = files.files()
    assert (file.name, file.at) == (name, 5.0)
    assert file.summary == "batch solver:7, 1 groups, 1 rows (1 of node-1): IndexError: x"
    head, line = [json.loads(text) for text in export(file, tmp_path / "out").read_text().splitlines()]
    assert head["errors"] == ["IndexError: x"] * 2
    assert (line["group"], line["task"], line["node"]) == ("train:0", "train:0/0", "node-1")
    assert np.array_equal(np.array(line["tokens"], np.int32), original.trajectory.tokens)
    assert np.array_equal(np.array(line["logprobs"], np.float32), original.trajectory.logprobs)
    assert [span["author"] for span in line["spans"]] == [span.author.value for span in original.trajectory.spans]


def test_numbers_that_are_not_finite_and_any_bytes_are_exported(tmp_path: Path) -> None:
    files = SetAsideFiles(tmp_path)
    files.store_batch(batch(), [row(metrics={"odd": float("nan")})], at=1.0)
    files.store_records([DamagedRecord(what="group", key="train:1", problem="x", body=b"\xff\x00")], at=2.0)
    records, rows = files.files()
    assert records.summary == "1 records: 1 group"
    assert json.loads(export(records, tmp_path / "out").read_text().splitlines()[1])["body"] == "/wA="
    assert "NaN" in export(rows, tmp_path / "out").read_text()


def test_the_oldest_files_are_deleted_beyond_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 3)
    files = SetAsideFiles(tmp_path)
    for step in range(6):
        files.store_batch(batch(step), [row()], at=float(step))
    assert [file.at for file in files.files()] == [5.0, 4.0, 3.0]
    monkeypatch.setattr(module, "MAX_BYTES", 1)
    files.store_batch(batch(6), [row()], at=6.0)
    assert [file.at for file in files.files()] == [6.0], "the newest stays whatever its size"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"[]\n", mtime=0), gzip.compress(b"{}\n" * 999, mtime=0)[:20]],
    ids=["empty", "no gzip", "a list", "cut"],
)
def test_a_damaged_file_is_listed_as_unreadable(content: bytes, tmp_path: Path) -> None:
    files = SetAsideFiles(tmp_path)
    files.store_batch(batch(), [row()], at=1.0)
    (tmp_path / "solver-1-1.jsonl.gz").write_bytes(content)
    assert sorted(bool(file.summary) for file in files.files()) == [False, True]


def test_the_lines_before_the_damage_are_exported(tmp_path: Path) -> None:
    files = SetAsideFiles(tmp_path / "aside")
    files.store_batch(batch(), [row() for _ in range(2000)], at=1.0)
    (file,) = files.files()
    file.path.write_bytes(file.path.read_bytes()[:-200])
    with raises_code(CorruptData, "set_aside.damaged"):
        export(file, tmp_path / "out")
    assert (tmp_path / "out" / f"{file.name}.jsonl").read_text().startswith('{"batch": "solver:7"')


def test_a_run_without_such_data_has_no_files(tmp_path: Path) -> None:
    assert SetAsideFiles(tmp_path / "missing").files() == []
