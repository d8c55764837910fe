import base64
import json
import pickle
import subprocess
import sys
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.datasets.published.code_tests import deepcoder_tests, limit_tests, livecodebench_tests
from tests.errors import raises_code

STDIN = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
EXPECTED = {"kind": "stdin", "input": "1\n", "output": "2\n"}


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


class Touch:
    """Executes code when it is unpickled, which must never happen."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('executed')",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_packed_tests_of_every_pickle_protocol_are_parsed(protocol: int) -> None:
    private = packed(pickle.dumps(json.dumps([*STDIN, {"input": "é\n", "output": ""}]), protocol))
    parsed_tests = livecodebench_tests(json.dumps(STDIN), private, "{}", "row 1")
    assert parsed_tests == [EXPECTED, EXPECTED, {"kind": "stdin", "input": "é\n", "output": ""}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Touch()), "(STACK_)?GLOBAL"),
        (pickle.dumps(["[]"]), "EMPTY_LIST"),
        (pickle.dumps("no JSON"), "tests are not JSON"),
        (b"\x80\x04.", "0 texts"),
        (b"garbage", "packed"),
    ],
)
def test_packed_tests_are_never_executed(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"row 1: .*{message}"):
        livecodebench_tests("[]", packed(content), "{}", "row 1")


@pytest.mark.parametrize("text", ["not base 64!", base64.b64encode(b"not compressed").decode()])
def test_undecodable_packed_tests_are_refused(text: str) -> None:
    with raises_code(InvalidInput, "dataset.invalid_tests", "row 1: packed"):
        livecodebench_tests("[]", text, "{}", "row 1")


def test_truncated_packed_tests_are_refused() -> None:
    whole = zlib.compress(pickle.dumps("[]" * 1000))
    with raises_code(InvalidInput, "dataset.invalid_tests", "truncated"):
        livecodebench_tests("[]", base64.b64encode(whole[:-5]).decode(), "{}", "row 1")


def test_the_arguments_of_a_call_are_read_by_line() -> None:
    tests = [{"input": '[1, 2]\n"x"', "output": "null", "testtype": "functional"}]
    parsed_tests = livecodebench_tests(json.dumps(tests), "[]", '{"func_name": "f"}', "row 1")
    assert parsed_tests == [{"kind": "call", "function": "f", "arguments": [[1, 2], "x"], "expected": [None]}]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (json.dumps(STDIN), EXPECTED),
        ({"inputs": ["1\n"], "outputs": ["2\n"]}, EXPECTED),
        ({"inputs": [["1", ""]], "outputs": [["2", ""]]}, EXPECTED),
        (
            {"fn_name": "g", "inputs": [[1]], "outputs": [[2]]},
            {"kind": "call", "function": "g", "arguments": [1], "expected": [[2], 2]},
        ),
        (
            [{"type": "function_call", "fn_name": "g", "input": [1], "output": 2}],
            {"kind": "call", "function": "g", "arguments": [1], "expected": [2]},
        ),
        (
            [{"testtype": "functional", "input": "1", "output": "2", "metadata": {"func_name": "g"}}],
            {"kind": "call", "function": "g", "arguments": [1], "expected": [2]},
        ),
        (
            [{"testtype": "functional", "input": "1", "output": "2"}],
            {"kind": "call", "function": "of_row", "arguments": [1], "expected": [2]},
        ),
    ],
)
def test_every_published_format_is_normalized(raw: Any, expected: dict[str, Any]) -> None:
    assert deepcoder_tests(raw, "of_row", "row 1") == [expected]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("{oops", "tests are not JSON"),
        ("3", "neither a list nor equally many inputs and outputs"),
        ({"inputs": ["a"], "outputs": []}, "neither a list nor equally many inputs and outputs"),
        ([{"input": "a"}], "a test has no input or no output"),
        ([{"type": "function_call", "input": [], "output": 1}], "neither it nor the row names"),
    ],
)
def test_unknown_test_formats_are_refused(raw: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"row 1: .*{message}"):
        deepcoder_tests(raw, "", "row 1")


@pytest.mark.long
@given(tests=st.lists(st.text(max_size=30), min_size=1, max_size=12), max_bytes=st.integers(1, 200))
def test_the_largest_tests_are_left_out_first(tests: list[str], max_bytes: int) -> None:
    kept, left_out = limit_tests(tests, max_bytes)
    sizes = [len(json.dumps(test)) for test in kept]

    assert len(kept) + left_out == len(tests)
    assert len(kept) == 1 or sum(sizes) <= max_bytes
    dropped = sorted((len(json.dumps(test)) for test in tests), reverse=True)[:left_out]
    assert not dropped or max(sizes) <= min(dropped)
    remaining = iter(tests)
    assert all(str(test) in remaining for test in kept)  # in their order


@pytest.mark.long
@pytest.mark.parametrize("name", ["deepcoder", "deepcoder_taco", "humaneval"])
def test_sample_solutions_pass_their_tests(name: str) -> None:
    loaded_dataset = datasets.build({"kind": "code", "name": name, "is_sample": True}, 0)
    for index in range(loaded_dataset.size):
        fields = loaded_dataset.prompt(index).fields
        for test in fields["tests"]:  # type: ignore[union-attr]  # a list
            assert passes(str(fields["answer"]), test), (loaded_dataset.prompt(index).id, test)


def passes(solution: str, test: Any) -> bool:
    """Returns whether a trusted program passes a trusted test."""
    stdin = ""
    match test["kind"]:
        case "stdin":
            stdin = test["input"]
        case "call":
            solution += f"\nassert {test['function']}(*{test['arguments']!r}) in {test['expected']!r}\n"
        case "check":
            solution += f"\n{test['code']}\ncheck({test['function']})\n"
    ran = subprocess.run([sys.executable, "-c", solution], input=stdin, capture_output=True, text=True, check=False)
    return ran.returncode == 0 and ran.stdout == test.get("output", "")
