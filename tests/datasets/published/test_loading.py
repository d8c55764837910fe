import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset
from astraflow.datasets.published.code import CODE_SETS
from astraflow.datasets.published.loading import SAMPLES
from astraflow.datasets.published.math import MATH_SETS
from astraflow.datasets.published.search import SEARCH_SETS
from tests.datasets import tables
from tests.errors import raises_code

FAMILIES: dict[str, dict[str, Any]] = {"math": dict(MATH_SETS), "code": dict(CODE_SETS), "search": dict(SEARCH_SETS)}
SETS = [(kind, name) for kind, names in FAMILIES.items() for name in names]

SHAPES = {
    "math": {"question", "answer", "problem", "level", "subject", "source"},
    "code": {
        "question",
        "answer",
        "problem",
        "starter_code",
        "function",
        "tests",
        "tests_left_out",
        "level",
        "source",
    },
    "search": {"question", "answer", "answers", "source"},
}


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLES / f"{name}.jsonl").read_text().splitlines()]


def fields_of(dataset: Dataset) -> list[dict[str, Any]]:
    return [dict(dataset.prompt(index).fields) for index in range(dataset.size)]


def as_jsonl(folder: Path, rows: tables.Rows, _split: str) -> Path:
    return tables.write_jsonl(folder / "copy.jsonl", rows)


def as_json(folder: Path, rows: tables.Rows, _split: str) -> Path:
    (folder / "copy.json").write_text(json.dumps(rows))
    return folder / "copy.json"


def as_parquet(folder: Path, rows: tables.Rows, _split: str) -> Path:
    return tables.write_parquet(folder / "copy.parquet", rows, group_rows=1)


def as_shards(folder: Path, rows: tables.Rows, _split: str) -> Path:
    return tables.write_shards(folder / "copy", rows, shard_rows=1)


def as_saved(folder: Path, rows: tables.Rows, split: str) -> Path:
    return tables.save_to_disk(folder / "copy", rows, split=split)


@pytest.mark.parametrize(("kind", "name"), SETS)
@pytest.mark.parametrize("copy", [as_jsonl, as_json, as_parquet, as_shards, as_saved])
def test_every_dataset_has_the_same_fields_from_every_file_format(
    tmp_path: Path, kind: str, name: str, copy: Callable[[Path, tables.Rows, str], Path]
) -> None:
    sample = datasets.build({"kind": kind, "name": name, "is_sample": True}, 0)
    known = FAMILIES[kind][name]
    published = getattr(known, "published", known)
    path = copy(tmp_path, rows_of(name), published.split)

    loaded_dataset = datasets.build(
        {"kind": kind, "name": name, "path": str(path), "cache": str(tmp_path / "cache")}, 0
    )

    assert fields_of(loaded_dataset) == fields_of(sample)
    assert all(set(fields) == SHAPES[kind] for fields in fields_of(loaded_dataset))
    assert all(sample.prompt(index).id.startswith(f"sample/{name}:") for index in range(sample.size))
    assert loaded_dataset.prompt(0).id.startswith(f"{name}:")


def test_a_downloaded_repository_is_read_by_its_dataset_card(tmp_path: Path) -> None:
    card = "---\nconfigs:\n- config_name: codeforces\n  data_files:\n  - split: test\n    path: cf/*.parquet\n---\n"
    (tmp_path / "README.md").write_text(card)
    (tmp_path / "cf").mkdir()
    tables.write_parquet(tmp_path / "cf" / "a.parquet", rows_of("codeforces"))
    spec = {"kind": "code", "name": "codeforces", "path": str(tmp_path), "cache": str(tmp_path / "cache")}
    assert datasets.build(spec, 0).size == 1


def test_without_a_usable_dataset_card_the_known_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Training data\n")
    tables.write_jsonl(tmp_path / "ASearcher-Base-35k.jsonl", [rows_of("asearcher")[0]])
    tables.write_jsonl(tmp_path / "ASearcher-LRM-35k.jsonl", [{"idx": 1}])
    spec = {"kind": "search", "name": "asearcher", "path": str(tmp_path), "cache": str(tmp_path / "cache")}
    assert datasets.build(spec, 0).size == 1


def test_the_question_follows_the_template() -> None:
    loaded_dataset = datasets.build(
        {"kind": "math", "name": "amc", "is_sample": True, "template": "Solve {x}: {question}"}, 0
    )
    fields = loaded_dataset.prompt(0).fields
    assert fields["question"] == f"Solve {{x}}: {fields['problem']}"
    assert fields["answer"] == "120"


def test_the_question_of_a_code_problem_names_the_expected_form() -> None:
    def question_of(name: str, index: int) -> str:
        return str(
            datasets.build({"kind": "code", "name": name, "is_sample": True}, 0).prompt(index).fields["question"]
        )

    assert "stdin" in question_of("deepcoder", 0)
    assert "with the function `count_vowels`" in question_of("deepcoder", 1)
    assert "```python\nclass Solution:\n    def countEven" in question_of("deepcoder_lcb", 1)
    assert '"""Return three times the number.' in question_of("humaneval", 0)


def test_tests_beyond_the_limit_are_left_out_and_counted() -> None:
    spec = {"kind": "code", "name": "deepcoder", "is_sample": True, "max_tests_bytes": 60}
    fields = datasets.build(spec, 0).prompt(0).fields
    assert fields["tests_left_out"] == 1
    assert fields["tests"] == [{"kind": "stdin", "input": "1\n-5\n", "output": "-5\n"}]


def test_the_own_instruction_of_a_problem_is_removed() -> None:
    loaded_dataset = datasets.build(
        {"kind": "math", "name": "dapo_filter", "is_sample": True, "template": "{question}"}, 0
    )
    assert loaded_dataset.prompt(0).fields["question"] == (
        "The product of two consecutive even integers is $168$. What is the smaller one, if both are positive?"
    )
    assert [loaded_dataset.prompt(index).fields["answer"] for index in range(3)] == ["12", "10", "8"]


def test_the_box_around_a_whole_answer_is_removed(tmp_path: Path) -> None:
    loaded_dataset = datasets.build({"kind": "math", "name": "olympiadbench", "is_sample": True}, 0)
    assert [loaded_dataset.prompt(index).fields["answer"] for index in range(3)] == ["9", "24", r"\frac{1}{4}"]
    two = r"$\boxed{1}$,$\boxed{2}$"
    path = tables.write_jsonl(tmp_path / "a.jsonl", [{"problem": "p", "solution": two}])
    prompt = datasets.build({"kind": "math", "name": "olympiadbench", "path": str(path)}, 0).prompt(0)
    assert prompt.fields["answer"] == two


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"prompt": [], "reward_model": {"ground_truth": "1"}}, "dataset.no_question"),
        ({"prompt": [{"role": "user", "content": "q"}], "reward_model": {}}, "dataset.no_answer"),
    ],
)
def test_a_problem_without_question_or_answer_is_refused(tmp_path: Path, row: dict[str, Any], code: str) -> None:
    path = tables.write_jsonl(tmp_path / "a.jsonl", [row])
    with raises_code(InvalidInput, code, "line 1"):
        datasets.build({"kind": "math", "name": "dapo_filter", "path": str(path)}, 0).prompt(0)


def test_the_tests_of_a_problem_with_inputs_and_outputs_are_calls_or_programs() -> None:
    loaded_dataset = datasets.build({"kind": "code", "name": "lcb_v5", "is_sample": True}, 0)
    assert loaded_dataset.prompt(0).fields["tests"] == [
        {"kind": "stdin", "input": "7 4\n", "output": "3\n"},
        {"kind": "stdin", "input": "1 9\n", "output": "-8\n"},
    ]
    assert loaded_dataset.prompt(1).fields["function"] == "rest"


def test_duplicate_answers_are_removed() -> None:
    fields = datasets.build({"kind": "search", "name": "asearcher", "is_sample": True}, 0).prompt(1).fields
    assert fields["answer"] == "Mara Lindholm"
    assert fields["answers"] == ["Mara Lindholm", "M. Lindholm"]


@pytest.mark.parametrize(
    ("spec", "code", "quoted"),
    [
        ({"kind": "math", "name": "deepscalar"}, "config.invalid", "'deepscaler'"),
        ({"kind": "code", "name": "humanevil"}, "config.invalid", "'humaneval'"),
        ({"kind": "search", "name": "zzz"}, "config.invalid", "asearcher"),
        ({"kind": "math", "name": "amc", "template": "no place"}, "config.invalid", "{question}"),
        ({"kind": "math", "name": "amc", "is_sample": True, "path": "x"}, "config.invalid", "is_sample"),
        ({"kind": "math", "name": "amc", "path": "/none/such"}, "dataset.not_found", "/none/such"),
    ],
)
def test_invalid_options_are_refused(spec: dict[str, Any], code: str, quoted: str) -> None:
    with raises_code(InvalidInput, code, quoted):
        datasets.build(spec, 0)


def test_a_file_of_another_dataset_is_refused_by_its_fields(tmp_path: Path) -> None:
    path = tables.write_jsonl(tmp_path / "a.jsonl", rows_of("amc"))
    with raises_code(InvalidInput, "dataset.wrong_field", "line 1", "'problem'", "answer, id"):
        datasets.build({"kind": "math", "name": "deepscaler", "path": str(path)}, 0)


def test_a_question_without_an_answer_is_refused(tmp_path: Path) -> None:
    path = tables.write_jsonl(tmp_path / "a.jsonl", [{"question": "q", "answer": []}])
    with pytest.raises(InvalidInput) as caught:
        datasets.build({"kind": "search", "name": "asearcher", "path": str(path)}, 0).prompt(0)
    assert caught.value.code == "dataset.no_answer"


@pytest.mark.parametrize(("kind", "name"), SETS)
def test_without_the_hub_the_error_names_the_download_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, name: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    known = FAMILIES[kind][name]
    hub = getattr(known, "published", known).hub
    with raises_code(InvalidInput, "dataset.hub_unreachable", f"--repo-type dataset {hub} "):
        datasets.build({"kind": kind, "name": name, "cache": str(tmp_path)}, 0)
