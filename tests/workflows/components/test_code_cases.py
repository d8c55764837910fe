"""Test cases that a policy writes: reading them, and comparing results."""

from contextlib import AbstractAsyncContextManager

import pytest

from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.sandbox.base import Job, JobLimits, JobResult, Level, Outcome, SandboxError, Session
from astraflow.workflows.components.code_cases import CodeTest, feedback_text, parse_cases, run_cases
from tests.errors import raises_code

LIMITS = JobLimits()


class FakeSandbox:
    """Answers every job with the same standard output, or raises."""

    level = Level.NONE

    def __init__(self, answer: str | SandboxError, *, outcome: Outcome = Outcome.PASSED) -> None:
        self.jobs: list[Job] = []
        self._answer = answer
        self._outcome = outcome

    async def run(self, job: Job) -> JobResult:
        self.jobs.append(job)
        if isinstance(self._answer, SandboxError):
            raise self._answer
        return JobResult(outcome=self._outcome, exit_status=0, stdout=self._answer, stderr="", wall_s=0.1)

    def session(self, limits: JobLimits, *, port: int | None = None) -> AbstractAsyncContextManager[Session]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("text", "function", "cases"),
    [
        ('[{"input": "1", "output": "2"}, {"input": "3", "output": "4"}]', "", [("1", "2"), ("3", "4")]),
        ('Hm.\n```json\n[{"input": "1", "output": 2}, {"input": 3, "output": "4"}]\n```', "", [("1", "2"), ("3", "4")]),
        ('[{"input": [1, "a"], "output": [2]}, {"input": [], "output": null}]', "f", [([1, "a"], [[2]]), ([], [None])]),
        ('[{"input": "1", "output": "2"}]', "", None),
        ('[{"input": "1"}, {"output": "2"}]', "", None),
        ('[{"input": [1], "output": "2"}, {"input": [1], "output": "2"}]', "", None),
        ('[{"input": 1, "output": 2}, {"input": 1, "output": 2}]', "f", None),
        ('{"input": "1", "output": "2"}', "", None),
        ("[" * 5000, "", None),
        ("I cannot.", "", None),
    ],
)
def test_cases_are_read_strictly(text: str, function: str, cases: list[tuple[object, object]] | None) -> None:
    parsed = parse_cases(text, count=2, function=function)

    fields = ("arguments", "expected") if function else ("input", "output")
    assert (None if parsed is None else [tuple(case[field] for field in fields) for case in parsed]) == cases


def program_case(stdin: str, expected: str) -> CodeTest:
    return {"kind": "stdin", "input": stdin, "output": expected}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("stdout", "expected", "passes"),
    [("3\n", "3", True), ("4", "3", False), ("0.33333333", "0.3333333", True), ("3", "3 4", False)],
)
async def test_outputs_of_programs_are_compared(stdout: str, expected: str, passes: bool) -> None:
    sandbox = FakeSandbox(stdout)

    (result,) = await run_cases(sandbox, "print(3)", [program_case("1 2", expected)], LIMITS)

    assert result.passes is passes
    assert (sandbox.jobs[0].files, sandbox.jobs[0].stdin) == ({"solution.py": "print(3)"}, "1 2")


@pytest.mark.anyio
async def test_results_of_functions_are_compared_as_json() -> None:
    case = {"kind": "call", "function": "f", "arguments": [1, [2]], "expected": [[1.0, "a"]]}

    (result,) = await run_cases(FakeSandbox('[1.0, "a"]\n'), "def f(a, b): ...", [case], LIMITS)

    assert result.passes


@pytest.mark.anyio
async def test_feedback_says_what_failed() -> None:
    cases = [program_case("1", "2"), program_case("1", "3")]

    text = feedback_text(cases, await run_cases(FakeSandbox("3"), "code", cases, LIMITS))

    assert "Case 1: FAIL\nInput:\n1\nExpected:\n2\nActual:\n3" in text
    assert "Case 2: PASS" in text


@pytest.mark.anyio
async def test_code_that_does_not_end_well_fails_and_a_sandbox_that_fails_is_a_failure() -> None:
    case = [program_case("", "")]
    late = FakeSandbox("", outcome=Outcome.TIMEOUT)
    (result,) = await run_cases(late, "while True: pass", case, LIMITS)
    assert (result.passes, result.outcome) == (False, Outcome.TIMEOUT)
    (result,) = await run_cases(FakeSandbox(""), "", case, LIMITS)
    assert not result.passes, "no code"

    with raises_code(RolloutFailed, "rollout.sandbox_failed") as failure:
        await run_cases(FakeSandbox(SandboxError("gone", code="sandbox.gone")), "code", case, LIMITS)
    assert failure.value.boundary is Boundary.ENVIRONMENT
