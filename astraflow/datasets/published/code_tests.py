"""Converts the tests of published programming problems into one form.

A test is one of
    {"kind": "stdin", "input": text, "output": text}         input of a program and its expected output
    {"kind": "call", "function": name, "arguments": [...], "expected": [...]}     any of the expected values is correct
    {"kind": "check", "function": name, "code": text, "prompt": text}    Python that defines `check(candidate)`, which
        raises, and the code that the problem gives, whose other functions the check may call (may be left out)
"""

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json

_MAX_UNPACKED_BYTES = 2**30
"""Bound of one problem's unpacked tests; larger data is rejected."""

_CALLS = frozenset({"function_call", "functional"})

_TEXT_OPCODES = frozenset({"BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "UNICODE"})
_EMPTY_OPCODES = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})


def deepcoder_tests(raw: Json, function: str, where: str) -> list[Json]:
    """Reads the tests of a DeepCoder row: a list of tests, or lists of inputs and outputs (TACO), as JSON or JSON text.

    function: function that `functional` tests call, if the row names it. Raises: InvalidInput.
    """
    content: Any = _json(raw, where) if isinstance(raw, str) else raw
    match content:
        case {"inputs": list(inputs), "outputs": list(outputs)} if len(inputs) == len(outputs):
            kind = "function_call" if content.get("fn_name") else "stdin"
            name = str(content.get("fn_name") or function)
            tests: list[Any] = [
                {"type": kind, "fn_name": name, "input": arguments, "output": expected}
                for arguments, expected in zip(inputs, outputs, strict=True)
            ]
        case list():
            tests = content
        case _:
            raise InvalidInput(
                f"cannot read {where}: tests are neither a list nor equally many inputs and outputs; correct the row",
                code="dataset.invalid_tests",
            )
    return [_test(test, function, where) for test in tests]


def livecodebench_tests(public: str, private: str, metadata: str, where: str) -> list[Json]:
    """Reads the public, then the private tests of a LiveCodeBench row; these may be packed. Raises: InvalidInput."""
    fields = _json(metadata or "{}", where)
    function = str(fields.get("func_name") or "") if isinstance(fields, dict) else ""
    test_lists = [_json(public, where), _json(private if _is_json(private) else _unpacked(private, where), where)]
    if not all(isinstance(tests, list) for tests in test_lists):
        raise InvalidInput(
            f"cannot read {where}: test cases are not lists; correct the row", code="dataset.invalid_tests"
        )
    return [_test(test, function, where) for tests in test_lists for test in tests]


def limit_tests(tests: Sequence[Json], max_bytes: int) -> tuple[list[Json], int]:
    """Returns the tests without the largest, so that the rest fits (at least one is kept), and the number left out.

    >>> limit_tests(["a" * 10, "b", "c"], max_bytes=8)
    (['b', 'c'], 1)
    """
    sizes = [len(json.dumps(test)) for test in tests]
    included, total = set(range(len(tests))), sum(sizes)
    for index in sorted(included, key=lambda index: sizes[index], reverse=True):
        if total <= max_bytes or len(included) == 1:
            break
        included.remove(index)
        total -= sizes[index]
    return [tests[index] for index in sorted(included)], len(tests) - len(included)


def _test(test: Any, function: str, where: str) -> Json:
    if not isinstance(test, dict) or "input" not in test or "output" not in test:
        raise InvalidInput(
            f"cannot read {where}: a test has no input or no output; correct the row", code="dataset.invalid_tests"
        )
    kind = test.get("type") or test.get("testtype")
    if kind not in _CALLS:
        return {"kind": "stdin", "input": _lines(test["input"]), "output": _lines(test["output"])}
    name = str(test.get("fn_name") or _function_named_in(test) or function)
    if not name:
        raise InvalidInput(
            f"cannot read {where}: a test calls a function that neither it nor the row names; correct the row",
            code="dataset.invalid_tests",
        )
    arguments, expected = _call(test["input"], test["output"], where)
    return {"kind": "call", "function": name, "arguments": arguments, "expected": expected}


def _function_named_in(test: Mapping[str, Any]) -> str:
    metadata = test.get("metadata")
    return str(metadata.get("func_name") or "") if isinstance(metadata, dict) else ""


def _call(inputs: Any, expected: Any, where: str) -> tuple[list[Json], list[Json]]:
    """Returns arguments and correct values: from JSON text with one argument per line, or from a list of arguments.

    In the latter form a value may be wrapped in a list, which is not distinguishable from a value that is such a list.
    """
    if isinstance(inputs, str):
        arguments = [_json(line, where) for line in inputs.splitlines() if line.strip()]
        return arguments, [_json(expected, where) if isinstance(expected, str) else expected]
    arguments = inputs if isinstance(inputs, list) else [inputs]
    is_wrapped = isinstance(expected, list) and len(expected) == 1
    return arguments, [expected, expected[0]] if is_wrapped else [expected]


def _lines(value: Any) -> str:
    return "\n".join(str(line) for line in value) if isinstance(value, list) else str(value)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(
            f"cannot read {where}: tests are not JSON: {problem}; correct the row", code="dataset.invalid_tests"
        ) from None


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in {"[", "{"}


def _unpacked(text: str, where: str) -> str:
    """Returns text that was pickled, compressed and encoded in base 64. It is parsed, never unpickled."""
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(text, validate=True), _MAX_UNPACKED_BYTES)
        if not unpacker.eof:
            raise ValueError(f"more than {_MAX_UNPACKED_BYTES} bytes when unpacked, or truncated")
        return _pickled_text(content)
    except (ValueError, binascii.Error, zlib.error) as problem:
        raise InvalidInput(
            f"cannot read {where}: packed tests are invalid: {problem}; correct the row", code="dataset.invalid_tests"
        ) from None


def _pickled_text(content: bytes) -> str:
    """Returns the only text in a pickle. Raises: ValueError when there is anything else, such as a call."""
    texts = list(_texts(content))
    if len(texts) != 1:
        raise ValueError(f"the pickle contains {len(texts)} texts, expected one")
    return texts[0]


def _texts(content: bytes) -> Iterator[str]:
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in _TEXT_OPCODES:
            yield str(argument)
        elif opcode.name not in _EMPTY_OPCODES:
            raise ValueError(f"the pickle contains {opcode.name}, expected only a text")
