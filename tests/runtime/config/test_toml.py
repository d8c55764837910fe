import doctest
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import toml
from astraflow.runtime.config.toml import merge_tables, parse_override, read_toml, read_values
from tests.errors import raises_code


def write(folder: Path, text: str) -> Path:
    file = folder / "run.toml"
    file.write_text(text)
    return file


def test_doctests_hold() -> None:
    assert doctest.testmod(toml).failed == 0


def test_a_syntax_error_is_reported_with_file_line_and_column(tmp_path: Path) -> None:
    file = write(tmp_path, 'name = "x"\nseed 3\n')
    with raises_code(InvalidInput, "file.invalid", f"{file}'", "line 2, column 6"):
        read_toml(file)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "file.invalid", "run.toml"):
        read_toml(write(tmp_path, 'name = "x'))


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"name = '\xff'")
    with raises_code(InvalidInput, "file.invalid", "byte 8", "UTF-8"):
        read_toml(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "file.unreadable", "absent.toml"):
        read_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 5000], ids=["deep", "long number"])
def test_toml_that_no_parser_can_hold_is_refused(tmp_path: Path, text: str) -> None:
    with raises_code(InvalidInput, "file.invalid", "run.toml"):
        read_toml(write(tmp_path, text))
    assert parse_override(text.replace(" ", "")) == {"a": text.removeprefix("a = ")}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"],
    ids=["empty", "list", "cut", "deep", "long number"],
)
def test_json_that_holds_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with raises_code(InvalidInput, "file.invalid", "run.json"):
        read_values(tmp_path / "run.json")
    with raises_code(InvalidInput, "file.unreadable", "absent.json"):
        read_values(tmp_path / "absent.json")


def test_merging_does_not_change_its_inputs() -> None:
    base, over = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge_tables(base, over) == {"a": {"b": 1, "c": 2}}
    assert base == {"a": {"b": 1}}
    assert over == {"a": {"c": 2}}


def test_merging_tables_of_one_kind_keeps_the_options() -> None:
    assert merge_tables({"loss": {"kind": "ppo", "clip": 0.2}}, {"loss": {"kind": "ppo", "dual": 3.0}}) == {
        "loss": {"kind": "ppo", "clip": 0.2, "dual": 3.0}
    }


@pytest.mark.parametrize("text", ["batch_groups", "=3", "a..b=3"])
def test_a_malformed_override_is_refused_with_an_example(text: str) -> None:
    with raises_code(InvalidInput, "toml.invalid_override", "key=value"):
        parse_override(text)


def test_an_override_value_can_contain_an_equals_sign() -> None:
    assert parse_override("summary=a=b") == {"summary": "a=b"}
