import json
from pathlib import Path
from typing import Any

import datasets as library
import httpx
import huggingface_hub.constants
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset
from astraflow.datasets.tables import arrow
from tests.datasets import tables
from tests.errors import raises_code


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


def dataset(path: Path | str, **options: Any) -> Dataset:
    return datasets.build({"kind": "huggingface", "path": str(path), **options}, 0)


def fields_of(loaded_dataset: Dataset) -> list[dict[str, Any]]:
    return [dict(loaded_dataset.prompt(index).fields) for index in range(loaded_dataset.size)]


def test_datasets_of_save_to_disk_are_read(tmp_path: Path) -> None:
    assert fields_of(dataset(tables.save_to_disk(tmp_path / "one"))) == tables.ROWS
    assert fields_of(dataset(tables.save_to_disk(tmp_path / "many", split="test"), split="test")) == tables.ROWS


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet", "shards"])
def test_files_and_folders_of_files_are_read(tmp_path: Path, cache: str, name: str) -> None:
    match name:
        case "rows.jsonl":
            tables.write_jsonl(tmp_path / name)
        case "rows.json":
            (tmp_path / name).write_text(json.dumps(tables.ROWS))
        case "rows.parquet":
            tables.write_parquet(tmp_path / name)
        case "shards":
            tables.write_shards(tmp_path / name)
    assert fields_of(dataset(tmp_path / name, cache=cache)) == tables.ROWS


def test_a_split_can_be_a_slice(tmp_path: Path, cache: str) -> None:
    path = tables.write_jsonl(tmp_path / "rows.jsonl")
    assert fields_of(dataset(path, cache=cache, split="test[10:12]")) == tables.ROWS[10:12]


def test_configurations_of_a_folder_follow_its_card(tmp_path: Path, cache: str) -> None:
    card = "---\nconfigs:\n" + "".join(
        f"- config_name: {name}\n  data_files:\n  - split: test\n    path: {name}.jsonl\n"
        for name in ("small", "large")
    )
    (tmp_path / "README.md").write_text(f"{card}---\n")
    tables.write_jsonl(tmp_path / "small.jsonl", tables.ROWS[:3])
    tables.write_jsonl(tmp_path / "large.jsonl")

    assert dataset(tmp_path, cache=cache, name="small", split="test").size == 3
    assert dataset(tmp_path, cache=cache, name="large", split="test").size == 50
    assert dataset(tmp_path, cache=cache, files=["small.jsonl"]).size == 3


def test_only_selected_columns_are_in_the_prompt(tmp_path: Path) -> None:
    path = tables.save_to_disk(tmp_path / "saved", [{**row, "picture": b"\x00"} for row in tables.ROWS])
    with raises_code(InvalidInput, "dataset.wrong_field", "'picture'"):
        dataset(path)
    assert fields_of(dataset(path, fields=["facts"], limit=2)) == tables.ROWS[:2]


def test_the_fingerprint_depends_on_the_rows_only(tmp_path: Path) -> None:
    saved = [tables.save_to_disk(tmp_path / name) for name in ("a", "b")]
    moved = tables.save_to_disk(tmp_path / "c", [*tables.ROWS[1:], tables.ROWS[0]])
    first, same, other = (dataset(path).fingerprint for path in (*saved, moved))
    assert first == same != other


def test_invalid_datasets_are_refused(tmp_path: Path, cache: str) -> None:
    saved = tables.save_to_disk(tmp_path / "saved", split="train")
    (tmp_path / "rows.xyz").write_text("")
    holes = tables.save_to_disk(
        tmp_path / "holes", [{"question": "q", "answer": None}, {"question": "q", "answer": "a"}]
    )
    for path, options, code in [
        (saved, {"split": "test"}, "dataset.unknown_split"),
        (saved, {"answer_field": "solution"}, "dataset.wrong_field"),
        (tmp_path / "none", {}, "dataset.not_found"),
        (tmp_path / "rows.xyz", {}, "dataset.unknown_format"),
        (holes, {}, "dataset.missing_values"),
        (tables.write_shards(tmp_path / "shards"), {"split": "test"}, "dataset.unreadable"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            dataset(path, cache=cache, **options)
        assert caught.value.code == code


def test_cells_of_csv_files_stay_as_they_are_written(tmp_path: Path, cache: str) -> None:
    (tmp_path / "files").mkdir()
    file = tmp_path / "files" / "train.csv"
    file.write_text("question,answer,level\nq,0.00001,1\nq,1.10,2\nq,007,3\n")

    for path in (file, file.parent):
        rows = dataset(path, cache=cache)
        assert [rows.prompt(index).fields["answer"] for index in range(3)] == ["0.00001", "1.10", "007"]
        assert rows.prompt(2).fields["level"] == 3
    file.write_text("question,answer\nq,1\nq,\n")
    with pytest.raises(InvalidInput) as refused:
        dataset(file, cache=cache)
    assert refused.value.code == "dataset.missing_values"


@pytest.mark.parametrize("second", ["answer", "question"])
def test_a_column_that_is_there_twice_in_a_csv_file_is_refused(tmp_path: Path, cache: str, second: str) -> None:
    file = tmp_path / "train.csv"
    file.write_text(f"\ufeff\nquestion,answer,{second}\nq,1,2\n", encoding="utf-8")
    with raises_code(InvalidInput, "dataset.repeated_column", second):
        dataset(file, cache=cache)
    file.write_text("question,answer,answer.1\nq,1,2\n")
    assert dataset(file, cache=cache).prompt(0).fields["answer.1"] == 2


BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", f'{{"question": "q", "answer": {BIG}}}\n{{"question": "q", "answer": 0.5}}\n'),
        ("a.json", f'[{{"question": "q", "answer": {BIG}}}, {{"question": "q", "answer": 0.5}}]'),
        ("a.jsonl", f'{{"question": "q", "answer": "1", "more": {{"ids": [0.5, -{BIG}]}}}}\n'),
        ("a.csv", f"question,answer,id\nq,1,{BIG}\nq,1,\n"),
        ("a.csv", f'question,answer,id\nq,1,"{BIG}"\nq,1,0.5\n'),
    ],
)
def test_whole_numbers_that_would_be_rounded_are_refused(tmp_path: Path, cache: str, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        dataset(file, cache=cache)
    assert refused.value.code in ("dataset.rounded_numbers", "dataset.wrong_field", "dataset.unreadable")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{{"question": "q", "answer": {BIG}}}\n', str(BIG)),
        (f'{{"question": "q", "answer": {-(2**63)}}}\n', str(-(2**63))),
        (f'{{"question": "{BIG}", "answer": 6.02e23}}\n', "6.02e+23"),
        (f'{{"question": "q", "answer": "{BIG}", "more": [0.5, 0.12345678901234567890]}}\n', str(BIG)),
    ],
)
def test_numbers_that_are_exact_are_read(tmp_path: Path, cache: str, text: str, expected: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    assert dataset(file, cache=cache, fields=["answer"]).prompt(0).fields["answer"] == expected


@pytest.mark.parametrize("between", ["", "\n"], ids=["one line", "many lines"])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_deeply_nested_json_is_refused(tmp_path: Path, cache: str, name: str, between: str) -> None:
    (tmp_path / "files").mkdir()
    file = tmp_path / "files" / name
    deep = between.join("[" * 100_000) + between.join("]" * 100_000)
    file.write_text('{"question": "q", "answer": "1", "more": ' + deep + "}\n")
    for path in (file, file.parent):
        with raises_code(InvalidInput, "dataset.unreadable", "100 deep"):
            dataset(path, cache=cache)


def test_archives_are_not_unpacked(tmp_path: Path, cache: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "rows.tar").write_bytes(b"")
    with pytest.raises(InvalidInput) as caught:
        dataset(tmp_path / "folder", cache=cache)
    assert caught.value.code == "dataset.unknown_format"


def test_an_offline_hub_names_the_download_command(monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for options in ({}, {"files": ["rows.jsonl"]}):
        with raises_code(InvalidInput, "dataset.hub_unreachable", "owner/name"):
            dataset("owner/name", cache=cache, **options)


@pytest.mark.parametrize("problem", [ConnectionError("no route"), httpx.ConnectError("no route")])
def test_an_unreachable_hub_has_its_own_error_code(
    monkeypatch: pytest.MonkeyPatch, cache: str, problem: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(library, "load_dataset_builder", fail)
    with pytest.raises(InvalidInput) as caught:
        dataset("owner/name", cache=cache)
    assert caught.value.code == "dataset.hub_unreachable"


def test_unexpected_errors_are_not_reported_as_network_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(library, "load_dataset_builder", fail)
    with pytest.raises(ZeroDivisionError):
        dataset("owner/name")


def test_hub_files_are_requested_by_name_and_revision(tmp_path: Path) -> None:
    origin = arrow.DatasetSource(path="owner/name", revision="abc", files=("a.jsonl", "b.jsonl"), split="test[:5]")
    assert arrow._arguments(origin, tmp_path / "none") == {
        "path": "json",
        "data_files": {"test": ["hf://datasets/owner/name@abc/a.jsonl", "hf://datasets/owner/name@abc/b.jsonl"]},
    }


@pytest.mark.parametrize(("file", "content"), [("state.json", "{}"), ("state.json", "[]"), ("dataset_info.json", "[]")])
def test_a_saved_dataset_with_damaged_metadata_is_refused(tmp_path: Path, file: str, content: str) -> None:
    saved = tables.save_to_disk(tmp_path / "saved")
    (Path(saved) / file).write_text(content)

    with raises_code(InvalidInput, "dataset.unreadable"):
        dataset(saved)


def test_the_cause_is_that_of_the_reader(tmp_path: Path, cache: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n{"question": "q", "answer": "a", "answer": "b"}\n')

    with raises_code(InvalidInput, "dataset.unreadable", "row 1"):
        dataset(path, cache=cache)
