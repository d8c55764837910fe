import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset
from tests.datasets import tables
from tests.errors import raises_code
from tests.hostile.files import LINES


def dataset(path: Path, content: bytes, **options: Any) -> Dataset:
    path.write_bytes(content)
    return datasets.build({"kind": "jsonl", "path": str(path), **options}, 0)


def test_lines_become_prompts_with_all_their_fields(tmp_path: Path) -> None:
    lines = [{"problem": "1+1", "solution": 2, "level": [3]}, {"problem": "é", "solution": "x"}]
    content = "\ufeff" + "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)

    loaded_dataset = dataset(tmp_path / "a.jsonl", content.encode(), question_field="problem", answer_field="solution")

    assert loaded_dataset.size == 2
    assert loaded_dataset.prompt(0).fields == {
        "problem": "1+1",
        "solution": 2,
        "level": [3],
        "question": "1+1",
        "answer": "2",
    }
    assert loaded_dataset.prompt(1).id == "line:3"


@pytest.mark.parametrize(("content", "message"), LINES.cases())
def test_an_invalid_line_is_refused_with_its_number(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        dataset(tmp_path / "bad.jsonl", content)


@pytest.mark.parametrize("number", ["0.00001", "1e-05", "1.10", "-0", "7", "1E5", "123456789012345678901234567890"])
def test_the_answer_is_the_number_as_it_is_written(tmp_path: Path, number: str) -> None:
    row = f'{{"question": "q \\ud83d\\ude00", "answer": {number}, "more": [{number}]}}\n'.encode()

    prompt = dataset(tmp_path / "numbers.jsonl", row).prompt(0)

    written = "0" if number == "-0" else number  # JSON has no negative whole zero in Python
    assert prompt.fields["answer"] == written
    assert prompt.fields["more"] == [float(number) if set(".eE") & set(number) else int(number)]
    assert type(prompt.fields["more"][0]) in (int, float)


@pytest.mark.parametrize("text", ["[" * 200, "]" * 200, '{"' * 200, '\\"[' * 200, "\\" * 3 + "[" * 200])
def test_brackets_in_a_text_are_no_nesting(tmp_path: Path, text: str) -> None:
    row = json.dumps({"question": text, "answer": "a", "more": [[[1]]]}).encode() + b"\n"

    assert dataset(tmp_path / "rows.jsonl", row).prompt(0).fields["question"] == text


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        datasets.build({"kind": "jsonl", "path": str(tmp_path / "none.jsonl")}, 0)
    assert caught.value.code == "dataset.unreadable"


def test_a_missing_relative_path_names_the_directory_that_it_is_relative_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises_code(InvalidInput, "dataset.unreadable", f"relative to the working directory '{tmp_path}'"):
        datasets.build({"kind": "jsonl", "path": "none.jsonl"}, 0)


def test_blank_lines_between_records_are_skipped(tmp_path: Path) -> None:
    first, second = b'{"question": "a", "answer": "1"}', b'{"question": "b", "answer": "2"}'
    loaded_dataset = dataset(tmp_path / "a.jsonl", b"\n" + first + b"\r\n\x0c\n \n" + second)

    assert [(loaded_dataset.prompt(index).id, loaded_dataset.prompt(index).fields["question"]) for index in (0, 1)] == [
        ("line:2", "a"),
        ("line:5", "b"),
    ]


def test_fields_and_limit_select_columns_and_rows(tmp_path: Path) -> None:
    path = tables.write_jsonl(tmp_path / "a.jsonl")
    loaded_dataset = datasets.build({"kind": "jsonl", "path": str(path), "fields": ["answer"], "limit": 7}, 0)

    assert loaded_dataset.size == 7
    assert loaded_dataset.prompt(6).fields == {"question": "What is 6 + 6?", "answer": "12"}
    with pytest.raises(InvalidInput) as caught:
        loaded_dataset.prompt(7)
    assert caught.value.code == "dataset.index_out_of_range"


def test_memory_does_not_grow_with_the_length_of_lines(tmp_path: Path) -> None:
    rows = [{"question": "q" * 10_000, "answer": "a"} for _ in range(300)]
    path = tables.write_jsonl(tmp_path / "a.jsonl", rows)
    tracemalloc.start()
    try:
        loaded_dataset = datasets.build({"kind": "jsonl", "path": str(path)}, 0)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert loaded_dataset.size == 300
    assert held < peak < path.stat().st_size / 4


def test_a_file_modified_while_in_use_is_refused(tmp_path: Path) -> None:
    path = tables.write_jsonl(tmp_path / "a.jsonl")
    loaded_dataset = datasets.build({"kind": "jsonl", "path": str(path)}, 0)
    with path.open("a") as more:
        more.write('{"question": "q", "answer": "a"}\n')

    with pytest.raises(InvalidInput) as caught:
        loaded_dataset.prompt(0)
    assert caught.value.code == "dataset.modified"


def test_a_replaced_file_can_still_be_read(tmp_path: Path) -> None:
    path = tables.write_jsonl(tmp_path / "a.jsonl")
    loaded_dataset = datasets.build({"kind": "jsonl", "path": str(path)}, 0)
    tables.write_jsonl(tmp_path / "b.jsonl", tables.ROWS[:3]).replace(path)

    assert loaded_dataset.prompt(49).fields["answer"] == "98"
    assert datasets.build({"kind": "jsonl", "path": str(path)}, 0).fingerprint != loaded_dataset.fingerprint


def test_a_copy_has_the_same_fingerprint(tmp_path: Path) -> None:
    paths = [tables.write_jsonl(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    first, other = (datasets.build({"kind": "jsonl", "path": str(path)}, 0) for path in paths)
    assert first.fingerprint == other.fingerprint


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        datasets.build({"kind": "jsonl", "path": str(tmp_path)}, 0)
    assert caught.value.code == "dataset.unreadable"


def test_first_rows_can_be_left_out_so_that_an_evaluation_has_them_alone(tmp_path: Path) -> None:
    content = b"".join(b'{"question": "%d", "answer": "a"}\n' % number for number in range(10))
    trained = dataset(tmp_path / "a.jsonl", content, skip=3, limit=5)
    held_out = dataset(tmp_path / "b.jsonl", content, limit=3)

    questions = [[each.prompt(index).fields["question"] for index in range(each.size)] for each in (trained, held_out)]
    assert questions == [["3", "4", "5", "6", "7"], ["0", "1", "2"]]
    assert trained.prompt(0).id == "line:4"
    with raises_code(InvalidInput, "dataset.nothing_left"):
        dataset(tmp_path / "c.jsonl", content, skip=10)


def test_rows_without_answers_are_prompts_when_no_field_has_them(tmp_path: Path) -> None:
    loaded = dataset(tmp_path / "rows.jsonl", b'{"question": "write a poem", "style": "short"}\n', answer_field="")
    assert loaded.prompt(0).fields == {"question": "write a poem", "style": "short"}
