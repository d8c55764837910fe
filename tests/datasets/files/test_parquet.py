import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset
from astraflow.datasets.tables.shards import ShardTable
from tests.datasets import tables
from tests.errors import raises_code

WANTED = {"question": (str,), "answer": (str,)}


def dataset(path: Path | str, **options: Any) -> Dataset:
    return datasets.build({"kind": "parquet", "path": str(path), **options}, 3)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the numbers of the row groups that are read from now on."""
    read = ShardTable._read
    numbers: list[int] = []

    def counted(table: ShardTable, shard: Any, number: int) -> Any:
        numbers.append(number)
        return read(table, shard, number)

    monkeypatch.setattr(ShardTable, "_read", counted)
    return numbers


def test_shards_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = tables.write_shards(tmp_path / "shards")
    for path in (folder, folder / "part-*.parquet"):
        loaded_dataset = dataset(path)
        assert [loaded_dataset.prompt(index).fields for index in range(loaded_dataset.size)] == tables.ROWS


def test_a_single_file_is_read(tmp_path: Path) -> None:
    assert dataset(tables.write_parquet(tmp_path / "a.parquet")).prompt(49).fields == tables.ROWS[49]


def test_a_remote_filesystem_is_read_like_a_folder() -> None:
    memory = fsspec.filesystem("memory")
    content = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(tables.ROWS), content, row_group_size=8)
    memory.pipe("/shelf/part-0.parquet", content.getvalue().to_pybytes())
    try:
        loaded_dataset = dataset("memory://shelf/*.parquet", shuffle_window=2)
        answers = sorted(
            int(str(loaded_dataset.prompt(index).fields["answer"])) for index in range(loaded_dataset.size)
        )
    finally:
        memory.rm("/shelf", recursive=True)
    assert answers == [2 * number for number in range(50)]


def test_memory_in_use_stays_within_the_cache_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tables.write_parquet(tmp_path / "a.parquet", group_rows=10)
    group_bytes = pyarrow.Table.from_pylist(tables.ROWS[:10]).nbytes
    table = ShardTable(str(path), WANTED, cache_bytes=int(2.5 * group_bytes))
    reads = count_reads(monkeypatch)

    for index in (0, 9, 10, 5, 20, 0, 12):  # groups 0 0 1 0 2 0 1; the cache holds two
        table.row(index)

    assert reads == [0, 1, 2, 1]


def test_a_row_group_larger_than_the_cache_is_read_once_for_consecutive_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ShardTable(str(tables.write_parquet(tmp_path / "a.parquet", group_rows=25)), WANTED, cache_bytes=1)
    reads = count_reads(monkeypatch)
    for index in range(table.size):
        table.row(index)
    assert reads == [0, 1]


def test_windows_are_shuffled_and_read_each_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_dataset = dataset(tables.write_shards(tmp_path / "shards"), shuffle_window=3)
    reads = count_reads(monkeypatch)
    ids = [loaded_dataset.prompt(index).id for index in range(loaded_dataset.size)]

    assert len(reads) == 3 + 3 + 2  # files of 20, 20 and 10 rows, row groups of eight
    assert ids != sorted(ids, key=lambda name: int(name.removeprefix("row:")))
    assert set(ids) == {f"row:{number}" for number in range(50)}


def test_only_selected_columns_are_read(tmp_path: Path) -> None:
    rows = [{**row, "picture": b"\x00"} for row in tables.ROWS]
    path = tables.write_parquet(tmp_path / "a.parquet", rows)

    with raises_code(InvalidInput, "dataset.wrong_field", "'picture'", "answer, facts, question"):
        dataset(path)
    assert dataset(path, fields=["facts"]).prompt(1).fields == tables.ROWS[1]


@pytest.mark.parametrize(
    ("change", "options", "code"),
    [
        ({"question": None}, {}, "dataset.missing_values"),
        ({}, {"answer_field": "solution"}, "dataset.wrong_field"),
        ({}, {"answer_field": "facts"}, "dataset.wrong_field"),
        ({}, {"fields": ["level"]}, "dataset.wrong_field"),
    ],
)
def test_rows_that_cannot_become_prompts_are_refused(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], code: str
) -> None:
    path = tables.write_parquet(tmp_path / "a.parquet", [{**tables.ROWS[0], **change}, *tables.ROWS[1:]])
    with pytest.raises(InvalidInput) as caught:
        dataset(path, **options)
    assert caught.value.code == code


def test_a_column_of_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    table = pyarrow.table([["q"], ["a"], ["b"], [1], [2]], names=["question", "answer", "answer", "x", "x"])
    pyarrow.parquet.write_table(table, tmp_path / "twice.parquet")
    pyarrow.parquet.write_table(table.remove_column(2), tmp_path / "more.parquet")

    with raises_code(InvalidInput, "dataset.repeated_column", "'answer'"):
        dataset(tmp_path / "twice.parquet")
    with raises_code(InvalidInput, "dataset.repeated_column", "'x'"):
        dataset(tmp_path / "more.parquet")
    assert dataset(tmp_path / "more.parquet", fields=["answer"]).prompt(0).fields == {"question": "q", "answer": "a"}


TEXTS = pyarrow.array([b"a", b"\xff", b"c"])
UNUSABLE: dict[str, tuple[Any, str, str]] = {
    "nulls": (pyarrow.array(["a", None, "c"]), "dataset.missing_values", "answer"),
    "nan": (pyarrow.array([1.0, float("nan"), 2.0]), "dataset.missing_values", "answer"),
    "infinite": (pyarrow.array([1.0, float("inf"), 2.0]), "dataset.missing_values", "answer"),
    "no UTF-8": (
        pyarrow.Array.from_buffers(pyarrow.string(), 3, TEXTS.buffers()), "dataset.unusable_value", "answer"
    ),
    "no UTF-8 in another": (
        pyarrow.Array.from_buffers(pyarrow.string(), 3, TEXTS.buffers()), "dataset.unusable_value", "more"
    ),
    "date": (pyarrow.array([0, 2**62, 0], pyarrow.timestamp("us")), "dataset.unusable_value", "more"),
    "time zone": (pyarrow.array([0, 1, 2], pyarrow.timestamp("us", "Nowhere/Else")), "dataset.unusable_value", "more"),
    "duration": (pyarrow.array([1, 2, 3], pyarrow.duration("s")), "dataset.wrong_field", "more"),
    "nested duration": (
        pyarrow.array([[1], [2], [3]], pyarrow.list_(pyarrow.duration("s"))), "dataset.wrong_field", "more"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSABLE)
@pytest.mark.parametrize("kind", ["parquet", "huggingface"])
def test_unusable_values_are_found_at_opening_with_file_and_row(tmp_path: Path, kind: str, name: str) -> None:
    column, code, field = UNUSABLE[name]
    answers = {"answer": column} if field == "answer" else {"answer": pyarrow.array(["a"] * 3), field: column}
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"question": pyarrow.array(["q"] * 3), **answers})
    pyarrow.parquet.write_table(table, path, write_statistics=False)

    options = {"cache": str(tmp_path / "cache")} if kind == "huggingface" else {}
    with pytest.raises(InvalidInput) as refused:
        datasets.build({"kind": kind, "path": str(path), **options}, 0)
    if kind == "huggingface" and refused.value.code == "dataset.unreadable":
        return  # the library refuses it itself
    assert refused.value.code == code
    row = 0 if name == "time zone" else 1
    assert code == "dataset.wrong_field" or f"rows.parquet, row {row}" in str(refused.value) or kind == "huggingface"


def test_a_row_beyond_the_check_is_refused_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.datasets.tables.shards.CHECKED_BYTES", 0)
    table = pyarrow.table({"question": ["q", "q"], "answer": [float("nan"), 0.00001]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    rows = dataset(tmp_path / "rows.parquet")

    with raises_code(InvalidInput, "dataset.wrong_field", "rows.parquet, row 0"):
        rows.prompt(0)
    assert rows.prompt(1).fields["answer"] == "0.00001"


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pyarrow.array([1e-05]), "0.00001"),
        (pyarrow.array([0.1], pyarrow.float32()), "0.1"),
        (pyarrow.array([1e300]), "1e+300"),
        (pyarrow.array([-0.0]), "-0.0"),
        (pyarrow.array([Decimal("1.10")]), "1.10"),
        (pyarrow.array([2**62]), str(2**62)),
    ],
)
def test_numbers_become_text_without_an_exponent(tmp_path: Path, column: Any, text: str) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"question": ["q"], "answer": column}), tmp_path / "rows.parquet")

    assert dataset(tmp_path / "rows.parquet").prompt(0).fields["answer"] == text


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pyarrow.list_(pyarrow.float32()), [0.1, None], [0.1, None]),
        (pyarrow.list_(pyarrow.float16(), 2), [0.1, 3], [0.1, 3.0]),
        (pyarrow.struct([("of", pyarrow.list_(pyarrow.float32()))]), {"of": [1e-05]}, {"of": [1e-05]}),
        (pyarrow.map_(pyarrow.string(), pyarrow.float32()), [("k", 0.3)], [["k", 0.3]]),
        (pyarrow.list_(pyarrow.float64()), [0.1], [0.1]),
    ],
)
def test_nested_numbers_are_as_short_as_others(tmp_path: Path, kind: Any, value: Any, expected: Any) -> None:
    columns = {"question": ["q", "r"], "answer": ["a", "b"], "more": pyarrow.array([value, None], kind)}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")

    rows = dataset(tmp_path / "rows.parquet")
    assert [rows.prompt(row).fields["more"] for row in range(2)] == [expected, None]


def test_shards_with_different_columns_are_refused(tmp_path: Path) -> None:
    folder = tables.write_shards(tmp_path / "shards")
    tables.write_parquet(folder / "z.parquet", [{**row, "more": 1} for row in tables.ROWS])
    with pytest.raises(InvalidInput) as caught:
        dataset(folder)
    assert caught.value.code == "dataset.different_columns"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("none", "dataset.not_found"),
        ("none/*.parquet", "dataset.not_found"),
        ("rows.jsonl", "dataset.unreadable"),
    ],
)
def test_missing_and_invalid_files_are_refused(tmp_path: Path, path: str, code: str) -> None:
    tables.write_jsonl(tmp_path / "rows.jsonl")
    with pytest.raises(InvalidInput) as caught:
        dataset(tmp_path / path)
    assert caught.value.code == code


def test_an_unknown_filesystem_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        dataset("shelf://a/b.parquet")
    assert caught.value.code == "dataset.unreadable"


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    empty = pyarrow.table(
        {"question": pyarrow.array([], pyarrow.string()), "answer": pyarrow.array([], pyarrow.string())}
    )
    pyarrow.parquet.write_table(empty, tmp_path / "a.parquet")
    with pytest.raises(InvalidInput) as caught:
        dataset(tmp_path / "a.parquet")
    assert caught.value.code == "dataset.empty"


def test_a_shard_modified_while_in_use_is_refused(tmp_path: Path) -> None:
    path = tables.write_parquet(tmp_path / "a.parquet")
    loaded_dataset = dataset(path)
    tables.write_parquet(path, tables.ROWS[:20])
    with raises_code(InvalidInput, "dataset.modified", "a.parquet"):
        loaded_dataset.prompt(0)


def test_the_fingerprint_depends_on_rows_and_shuffle_window(tmp_path: Path) -> None:
    same = [tables.write_parquet(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    other = tables.write_parquet(tmp_path / "c.parquet", [*tables.ROWS[1:], tables.ROWS[0]])
    prints = [dataset(path).fingerprint for path in (*same, other)]
    prints += [dataset(same[0], shuffle_window=window).fingerprint for window in (1, 2)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tables.write_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with raises_code(InvalidInput, "package.missing", "'astraflow[data]'"):
        dataset(path)
