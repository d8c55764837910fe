import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset


def dataset(path: Path, content: bytes, **options: Any) -> Dataset:
    path.write_bytes(content)
    return datasets.build({"kind": "jsonl", "path": str(path), **options}, 0)


def test_lines_become_prompts_with_all_their_fields(tmp_path: Path) -> None:
    lines = [{"problem": "1+1", "solution": 2, "level": [3]}, {"problem": "é", "solution": "x"}]
    content = "\ufeff" + "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)

    found = dataset(tmp_path / "a.jsonl", content.encode(), question_field="problem", answer_field="solution")

    assert found.size == 2
    assert found.prompt(0).fields == {"problem": "1+1", "solution": 2, "level": [3], "question": "1+1", "answer": "2"}
    assert found.prompt(1).id == "line:3"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "q", "answer": "a"}\n{oops}\n', "line 2: not JSON"),
        (b'{"question": "q", "answer": NaN}\n', "line 1: not JSON: NaN"),
        (b"\n[1]\n", "line 2: expected a JSON object, found list"),
        (
            b'{"question": "q"}\n',
            "line 1: field 'answer' is missing, expected text or a whole number .*; it has question",
        ),
        (b'{"question": 3, "answer": "a"}\n', "line 1: field 'question' is int, expected text"),
        (b'{"question": "q", "answer": true}\n', "field 'answer' is bool"),
        (b"\xff\n", "line 1: not UTF-8"),
        (b"\n\n", "is empty"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        dataset(tmp_path / "bad.jsonl", content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.jsonl cannot be read: No such file"):
        datasets.build({"kind": "jsonl", "path": str(tmp_path / "none.jsonl")}, 0)
