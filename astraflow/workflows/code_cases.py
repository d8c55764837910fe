"""Test cases that a policy writes for a program or a function, and runs of code on them in a sandbox."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.failures import Boundary, RolloutFailed
from astraflow.contract.values import Json
from astraflow.sandbox.base import Job, JobLimits, Outcome, Sandbox, SandboxError
from astraflow.workflows.conversation import shortened
from astraflow.workflows.roles import at_once

_BLOCK = re.compile(r"```[ \t]*(\w*)[^\n]*\n(.*?)```", re.DOTALL)
_MARK = "result of the function: "
_CALL = """
import json as _json, sys as _sys
_arguments = _json.loads(_sys.stdin.read())
_function = getattr(Solution(), {name!r}) if "Solution" in globals() else globals()[{name!r}]
print("\\n" + {mark!r} + _json.dumps(_function(*_arguments), default=list))
"""
_MAX_CASE_CHARACTERS = 20_000
_SHOWN_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCase:
    """Input and expected output: texts of a program, or arguments and result of a function."""

    given: Json
    """Standard input as text; for a function the list of arguments."""
    expected: Json
    """Standard output as text; for a function the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """Result of code on one case."""

    passes: bool
    outcome: Outcome
    actual: str
    """Standard output, or the result of the function as JSON; for code that did not end well, the last line of its
    error."""


def extract_code(text: str) -> str:
    """Returns the last fenced block of a text, empty without one.

    >>> extract_code("First:\\n```python\\nprint(1)\\n```\\nThat is all.")
    'print(1)\\n'
    """
    blocks = _BLOCK.findall(text)
    return blocks[-1][1] if blocks else ""


def parse_cases(text: str, *, count: int, is_function: bool) -> tuple[CodeCase, ...] | None:
    """Returns the cases at the end of a text: a JSON list of `count` objects with `input` and `output`, in a fenced
    block or bare. None for anything else.

    >>> parse_cases('So: [{"input": "1 2", "output": 3}]', count=1, is_function=False)
    (CodeCase(given='1 2', expected='3'),)
    """
    rows = _last_list(text)
    if rows is None or len(rows) != count:
        return None
    cases = []
    for row in rows:
        if not isinstance(row, dict) or not {"input", "output"} <= row.keys():
            return None
        given, expected = row["input"], row["output"]
        if is_function and not isinstance(given, list):
            return None
        if not is_function:
            if isinstance(given, list | dict | None) or isinstance(expected, list | dict | None):
                return None
            given, expected = str(given), str(expected)
        if len(json.dumps([given, expected])) > _MAX_CASE_CHARACTERS:
            return None
        cases.append(CodeCase(given=given, expected=expected))
    return tuple(cases)


async def run_cases(
    sandbox: Sandbox, code: str, cases: Sequence[CodeCase], *, function: str, limits: JobLimits
) -> list[CaseResult]:
    """Runs code on each case, each in a process of its own. function: its name; empty for a program.

    Raises: RolloutFailed at the boundary `environment` when the sandbox fails.
    """
    return await at_once(_run(sandbox, code, case, function, limits) for case in cases)


def feedback_text(cases: Sequence[CodeCase], results: Sequence[CaseResult]) -> str:
    """Returns a line or more for each case: passed, or failed with input, expected and actual output."""
    lines = []
    for number, (case, result) in enumerate(zip(cases, results, strict=True), start=1):
        if result.passes:
            lines.append(f"Case {number}: PASS")
            continue
        shown = (_shown(case.given), _shown(case.expected), shortened(result.actual, _SHOWN_CHARACTERS))
        cause = "" if result.outcome is Outcome.PASSED else f" ({result.outcome.value})"
        lines.append(f"Case {number}: FAIL{cause}\nInput:\n{shown[0]}\nExpected:\n{shown[1]}\nActual:\n{shown[2]}")
    return "\n\n".join(lines)


async def _run(sandbox: Sandbox, code: str, case: CodeCase, function: str, limits: JobLimits) -> CaseResult:
    if not code.strip():
        return CaseResult(passes=False, outcome=Outcome.FAILED, actual="there is no code")
    source = code + _CALL.format(name=function, mark=_MARK) if function else code
    stdin = json.dumps(case.given) if function else str(case.given)
    try:
        result = await sandbox.run(Job(source=source, stdin=stdin, limits=limits))
    except SandboxError as problem:
        raise RolloutFailed(
            f"cannot run code on test cases: {problem}", boundary=Boundary.ENVIRONMENT, code="rollout.sandbox_failed"
        ) from problem
    if result.outcome is not Outcome.PASSED:
        error = result.stderr.strip().splitlines()[-1:] or [result.outcome.value]
        return CaseResult(passes=False, outcome=result.outcome, actual=error[0])
    actual = _function_result(result.stdout) if function else result.stdout
    passes = _equal_results(actual, case.expected) if function else _equal_texts(actual, str(case.expected))
    return CaseResult(passes=passes, outcome=result.outcome, actual=actual.strip())


def _function_result(stdout: str) -> str:
    marked = [line for line in stdout.splitlines() if line.startswith(_MARK)]
    return marked[-1].removeprefix(_MARK) if marked else ""


def _equal_results(actual: str, expected: Json) -> bool:
    try:
        return _equal(json.loads(actual), expected)
    except ValueError:
        return False


def _equal(actual: Json, expected: Json) -> bool:
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(_equal, actual, expected))
    if isinstance(actual, float) and isinstance(expected, float | int):
        return math.isclose(actual, expected, rel_tol=1e-6, abs_tol=1e-9)
    return actual == expected


def _equal_texts(actual: str, expected: str) -> bool:
    """Returns whether two outputs have the same words; numbers with a point may differ by rounding."""
    words, wanted = actual.split(), expected.split()
    return len(words) == len(wanted) and all(map(_equal_words, words, wanted))


def _equal_words(word: str, wanted: str) -> bool:
    if word == wanted or "." not in wanted:
        return word == wanted
    try:
        return math.isclose(float(word), float(wanted), rel_tol=1e-6, abs_tol=1e-9)
    except ValueError:
        return False


def _last_list(text: str) -> list[Json] | None:
    """Returns the last JSON list of a text: that of the last fenced block, else the one that begins latest."""
    blocks = _BLOCK.findall(text)
    candidates = [blocks[-1][1]] if blocks else []
    begin = text.rfind("[{")
    if begin >= 0:
        candidates.append(text[begin:])
    for candidate in candidates:
        try:
            value, _ = json.JSONDecoder().raw_decode(candidate.strip())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list):
            return value
    return None


def _shown(value: Json) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value), _SHOWN_CHARACTERS)
