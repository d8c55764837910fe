"""Trajectories are rows with an entry for each token, which other libraries and our data sets read."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from astraflow.archive.connection import open_recorded
from astraflow.archive.samples import find_trajectories
from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.tracking.trajectory_rows import sample_pages, write_rows
from tests.errors import raises_code
from tests.fakes.recorded_run import fill, recorded_archive, run_folder

LISTS = ("token_ids", "roles", "loss_mask", "logprobs", "versions")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    run = run_folder(tmp_path / "run")
    archive = recorded_archive(run)
    fill(archive, groups=3)
    archive.close()
    return run / "dataflow" / "history.sqlite"


def written(archive: Path, file: Path) -> int:
    with closing(open_recorded(archive)) as database:
        return write_rows(file, sample_pages(lambda query: find_trajectories(database, query)))


def test_rows_have_an_entry_for_each_token(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.tracking.trajectory_rows.PAGE_ROWS", 2)
    count = written(recorded, tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert count == len(rows) == len({row["id"] for row in rows}) > 2
    for row in rows:
        assert len({len(row[name]) for name in LISTS}) == 1
        for is_written, logprob, version, role in zip(*(row[name] for name in LISTS[2:] + LISTS[1:2]), strict=True):
            assert (logprob is not None) == (version is not None) == bool(is_written) == (role == "assistant")


def test_parquet_has_the_same_rows(recorded: Path, tmp_path: Path) -> None:
    written(recorded, tmp_path / "rows.jsonl")
    written(recorded, tmp_path / "rows.parquet")
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["token_ids"] for row in table] == [row["token_ids"] for row in lines]
    assert [row["logprobs"] for row in table] == [row["logprobs"] for row in lines]
    assert set(table[0]) == set(lines[0])


def test_a_share_of_the_groups_is_written_in_the_layout_of_atif(recorded: Path, tmp_path: Path) -> None:
    def documents(share: float) -> list[dict[str, Any]]:
        with closing(open_recorded(recorded)) as database:
            pages = sample_pages(lambda query: find_trajectories(database, query), share)
            write_rows(tmp_path / "x.atif.jsonl", pages)
        return [json.loads(line) for line in (tmp_path / "x.atif.jsonl").read_text().splitlines()]

    whole, half = documents(1.0), documents(0.5)
    assert documents(0.0) == []
    assert half == [document for document in whole if document in half]
    assert {document["schema_version"] for document in whole} == {"ATIF-v1.8"}


def test_the_rows_are_a_data_set_of_completions(recorded: Path, tmp_path: Path) -> None:
    written(recorded, tmp_path / "rows.jsonl")
    spec = {"kind": "jsonl", "path": str(tmp_path / "rows.jsonl"), "answer_field": "completion"}
    first = datasets.build(spec, 0).prompt(0)
    assert first.fields["answer"] == json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])["completion"]


def test_another_ending_is_refused_and_nothing_is_left(recorded: Path, tmp_path: Path) -> None:
    with raises_code(InvalidInput, "trajectories.unknown_format"):
        written(recorded, tmp_path / "rows.csv")
    assert not list(tmp_path.glob("rows*"))
