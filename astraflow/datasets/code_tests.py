"""The tests of published programming problems, in one form.

A test is one of
    {"kind": "stdin", "input": text, "output": text}         what the program reads and must write
    {"kind": "call", "function": name, "arguments": [...], "expected": [...]}     any of the expected values is right
    {"kind": "check", "function": name, "code": text}        Python that defines `check(candidate)`, which raises
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
"""Of one problem's packed tests: what unpacks to more is no set of tests."""

_CALLS = frozenset({"function_call", "functional"})

_TEXT_OPCODES = frozenset({"BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "UNICODE"})
_EMPTY_OPCODES = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})


def deepcoder_tests(raw: Json, function: str, where: str) -> list[Json]:
    """Of a row of DeepCoder: a list of tests, or lists of inputs and outputs (TACO); as JSON or JSON in text.

    function: the one that `functional` tests call, if the row names it. Raises: InvalidInput.
    """
    found: Any = _json(raw, where) if isinstance(raw, str) else raw
    match found:
        case {"inputs": list(inputs), "outputs": list(outputs)} if len(inputs) == len(outputs):
            kind = "function_call" if found.get("fn_name") else "stdin"
            name = str(found.get("fn_name") or function)
            tests: list[Any] = [
                {"type": kind, "fn_name": name, "input": given, "output": wanted}
                for given, wanted in zip(inputs, outputs, strict=True)
            ]
        case list():
            tests = found
        case _:
            raise InvalidInput(f"{where}: tests are neither a list nor inputs and as many outputs")
    return [_test(test, function, where) for test in tests]


def livecodebench_tests(public: str, private: str, metadata: str, where: str) -> list[Json]:
    """Of a row of LiveCodeBench: the public tests, then the private ones, which may be packed. Raises: InvalidInput."""
    facts = _json(metadata or "{}", where)
    function = str(facts.get("func_name") or "") if isinstance(facts, dict) else ""
    both = [_json(public, where), _json(private if _is_json(private) else _unpacked(private, where), where)]
    if not all(isinstance(tests, list) for tests in both):
        raise InvalidInput(f"{where}: test cases are no lists")
    return [_test(test, function, where) for tests in both for test in tests]


def bounded(tests: Sequence[Json], max_bytes: int) -> tuple[list[Json], int]:
    """The tests without the largest, so that the rest fits (one is always kept), and how many were left out.

    >>> bounded(["a" * 10, "b", "c"], max_bytes=8)
    (['b', 'c'], 1)
    """
    sizes = [len(json.dumps(test)) for test in tests]
    kept, total = set(range(len(tests))), sum(sizes)
    for place in sorted(kept, key=lambda place: sizes[place], reverse=True):
        if total <= max_bytes or len(kept) == 1:
            break
        kept.remove(place)
        total -= sizes[place]
    return [tests[place] for place in sorted(kept)], len(tests) - len(kept)


def _test(test: Any, function: str, where: str) -> Json:
    if not isinstance(test, dict) or "input" not in test or "output" not in test:
        raise InvalidInput(f"{where}: a test needs an input and an output")
    kind = test.get("type") or test.get("testtype")
    if kind not in _CALLS:
        return {"kind": "stdin", "input": _lines(test["input"]), "output": _lines(test["output"])}
    name = str(test.get("fn_name") or _named_in(test) or function)
    if not name:
        raise InvalidInput(f"{where}: a test calls a function, and neither it nor the row says which")
    arguments, expected = _call(test["input"], test["output"], where)
    return {"kind": "call", "function": name, "arguments": arguments, "expected": expected}


def _named_in(test: Mapping[str, Any]) -> str:
    facts = test.get("metadata")
    return str(facts.get("func_name") or "") if isinstance(facts, dict) else ""


def _call(given: Any, wanted: Any, where: str) -> tuple[list[Json], list[Json]]:
    """Arguments and right values: as JSON in text, one argument a line, or as a list of arguments.

    In the latter form a value may stand in a list of its own, which is not told from a value that is such a list.
    """
    if isinstance(given, str):
        arguments = [_json(line, where) for line in given.splitlines() if line.strip()]
        return arguments, [_json(wanted, where) if isinstance(wanted, str) else wanted]
    arguments = given if isinstance(given, list) else [given]
    is_wrapped = isinstance(wanted, list) and len(wanted) == 1
    return arguments, [wanted, wanted[0]] if is_wrapped else [wanted]


def _lines(value: Any) -> str:
    return "\n".join(str(line) for line in value) if isinstance(value, list) else str(value)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"{where}: tests are not JSON: {problem}") from None


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in {"[", "{"}


def _unpacked(text: str, where: str) -> str:
    """Text that was pickled, compressed and written in base 64. It is parsed, never unpickled."""
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(text, validate=True), _MAX_UNPACKED_BYTES)
        if not unpacker.eof:
            raise ValueError(f"they unpack to more than {_MAX_UNPACKED_BYTES} bytes, or are cut off")
        return _pickled_text(content)
    except (ValueError, binascii.Error, zlib.error) as problem:
        raise InvalidInput(f"{where}: packed tests cannot be read: {problem}") from None


def _pickled_text(content: bytes) -> str:
    """The one text in a pickle. Raises: ValueError when there is anything else, such as a call."""
    texts = list(_texts(content))
    if len(texts) != 1:
        raise ValueError(f"the pickle holds {len(texts)} texts, expected one")
    return texts[0]


def _texts(content: bytes) -> Iterator[str]:
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in _TEXT_OPCODES:
            yield str(argument)
        elif opcode.name not in _EMPTY_OPCODES:
            raise ValueError(f"the pickle holds {opcode.name}, expected a text alone")
