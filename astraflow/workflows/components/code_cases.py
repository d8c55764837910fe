"""Test cases that a policy writes for a program or a function, and runs of code on them in a sandbox."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.values import Json
from astraflow.rewards.code_tests import is_correct, test_job
from astraflow.sandbox.base import JobLimits, Outcome, Sandbox, SandboxError
from astraflow.workflows.components.conversation import shortened
from astraflow.workflows.components.roles import at_once

CodeTest: TypeAlias = Mapping[str, Any]
"""A test as the reward `code_tests` reads it, of the kind `stdin` or `call`."""

TOLERANCE = 1e-6
"""Relative difference up to which a number with a decimal point is correct."""
_BLOCK = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_MAX_CASE_CHARACTERS = 20_000
_SHOWN_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """Result of code on one case."""

    passes: bool
    outcome: Outcome
    actual: str
    """Standard output, or the result of the function as JSON; for code that did not end well, the last line of its
    error."""


def parse_cases(text: str, *, count: int, function: str) -> tuple[CodeTest, ...] | None:
    """Returns the cases at the end of a text: a JSON list of `count` objects with `input` and `output`, in a fenced
    block or bare. None for anything else.

    function: name of the function, whose `input` is the list of arguments; empty for a program.

    >>> parse_cases('So: [{"input": "1 2", "output": 3}]', count=1, function="")
    ({'kind': 'stdin', 'input': '1 2', 'output': '3'},)
    """
    rows = _last_list(text)
    if rows is None or len(rows) != count:
        return None
    cases = [_case(row, function) for row in rows]
    return None if None in cases else tuple(case for case in cases if case is not None)


async def run_cases(sandbox: Sandbox, code: str, cases: Sequence[CodeTest], limits: JobLimits) -> list[CaseResult]:
    """Runs code on each case, each in a process of its own.

    Raises: RolloutFailed at the boundary `environment` when the sandbox fails.
    """
    return await at_once(_run(sandbox, code, case, limits) for case in cases)


def feedback_text(cases: Sequence[CodeTest], results: Sequence[CaseResult]) -> str:
    """Returns a line or more for each case: passed, or failed with input, expected and actual output."""
    parts = []
    for number, (case, result) in enumerate(zip(cases, results, strict=True), start=1):
        if result.passes:
            parts.append(f"Case {number}: PASS")
            continue
        case_input, expected = _shown_case(case)
        cause = "" if result.outcome is Outcome.PASSED else f" ({result.outcome.value})"
        actual = shortened(result.actual, _SHOWN_CHARACTERS)
        parts.append(f"Case {number}: FAIL{cause}\nInput:\n{case_input}\nExpected:\n{expected}\nActual:\n{actual}")
    return "\n\n".join(parts)


def _case(row: Json, function: str) -> CodeTest | None:
    if not isinstance(row, dict) or not {"input", "output"} <= row.keys():
        return None
    case_input, expected = row["input"], row["output"]
    if len(json.dumps([case_input, expected])) > _MAX_CASE_CHARACTERS:
        return None
    if function:
        is_call = isinstance(case_input, list)
        return (
            {"kind": "call", "function": function, "arguments": case_input, "expected": [expected]} if is_call else None
        )
    if not all(isinstance(value, str | int | float) for value in (case_input, expected)):
        return None
    return {"kind": "stdin", "input": str(case_input), "output": str(expected)}


async def _run(sandbox: Sandbox, code: str, case: CodeTest, limits: JobLimits) -> CaseResult:
    if not code.strip():
        return CaseResult(passes=False, outcome=Outcome.FAILED, actual="there is no code")
    try:
        result = await sandbox.run(test_job(code, case, limits))
    except SandboxError as problem:
        raise RolloutFailed(
            f"cannot run code on test cases: {problem}", boundary=Boundary.ENVIRONMENT, code="rollout.sandbox_failed"
        ) from problem
    if result.outcome is not Outcome.PASSED:
        error = result.stderr.strip().splitlines()[-1:] or [result.outcome.value]
        return CaseResult(passes=False, outcome=result.outcome, actual=error[0])
    passes = is_correct(case, result, TOLERANCE)
    return CaseResult(passes=passes, outcome=result.outcome, actual=result.stdout.strip())


def _last_list(text: str) -> list[Json] | None:
    """Returns the last JSON list of a text: the list in the last fenced block, otherwise the list that begins last."""
    candidates = _BLOCK.findall(text)[-1:]
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


def _shown_case(case: CodeTest) -> tuple[str, str]:
    if case["kind"] == "call":
        case_input, expected = json.dumps(case["arguments"]), json.dumps(case["expected"][0])
    else:
        case_input, expected = case["input"], case["output"]
    return shortened(case_input, _SHOWN_CHARACTERS), shortened(expected, _SHOWN_CHARACTERS)
