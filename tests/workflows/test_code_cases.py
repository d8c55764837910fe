"""Test cases that a policy writes: reading them, and comparing results."""

import pytest

from astraflow.contract.failures import Boundary, RolloutFailed
from astraflow.sandbox.base import Job, JobLimits, JobResult, Outcome, SandboxError
from astraflow.workflows.code_cases import CodeCase, extract_code, feedback_text, parse_cases, run_cases
from tests.errors import raises_code

LIMITS = JobLimits()


class FakeSandbox:
    """Answers every job with the same result."""

    def __init__(self, stdout: str, *, outcome: Outcome = Outcome.PASSED, stderr: str = "") -> None:
        self.jobs: list[Job] = []
        self._result = JobResult(outcome=outcome, exit_status=0, stdout=stdout, stderr=stderr, wall_s=0.1)

    async def run(self, job: Job) -> JobResult:
        self.jobs.append(job)
        return self._result


@pytest.mark.parametrize(
    ("text", "is_function", "cases"),
    [
        ('[{"input": "1", "output": "2"}, {"input": "3", "output": "4"}]', False, [("1", "2"), ("3", "4")]),
        (
            'Hm.\n```json\n[{"input": "1", "output": 2}, {"input": 3, "output": "4"}]\n```',
            False,
            [("1", "2"), ("3", "4")],
        ),
        ('[{"input": [1, "a"], "output": [2]}, {"input": [], "output": null}]', True, [([1, "a"], [2]), ([], None)]),
        ('[{"input": "1", "output": "2"}]', False, None),
        ('[{"input": "1"}, {"output": "2"}]', False, None),
        ('[{"input": [1], "output": "2"}, {"input": [1], "output": "2"}]', False, None),
        ('[{"input": 1, "output": 2}, {"input": 1, "output": 2}]', True, None),
        ('{"input": "1", "output": "2"}', False, None),
        ("[" * 5000, False, None),
        ("I cannot.", False, None),
    ],
)
def test_cases_are_read_strictly(text: str, is_function: bool, cases: list[tuple[object, object]] | None) -> None:
    found = parse_cases(text, count=2, is_function=is_function)

    assert (None if found is None else [(case.given, case.expected) for case in found]) == cases


def test_the_last_block_is_the_code() -> None:
    assert extract_code("```\nold\n```\nBetter:\n```python\nnew\n```") == "new\n"
    assert extract_code("no code") == ""


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("stdout", "expected", "passes"),
    [
        ("3\n", "3", True),
        ("3  4\n", "3\n4", True),
        ("4", "3", False),
        ("0.33333333", "0.3333333", True),
        ("3", "3 4", False),
    ],
)
async def test_outputs_are_compared_by_words(stdout: str, expected: str, passes: bool) -> None:
    sandbox = FakeSandbox(stdout)

    (result,) = await run_cases(
        sandbox, "print(3)", [CodeCase(given="1 2", expected=expected)], function="", limits=LIMITS
    )  # type: ignore[arg-type]

    assert result.passes is passes
    assert (sandbox.jobs[0].source, sandbox.jobs[0].stdin) == ("print(3)", "1 2")


@pytest.mark.anyio
async def test_results_of_functions_are_compared_as_json() -> None:
    case = CodeCase(given=[1, [2]], expected=[1.0, "a"])
    sandbox = FakeSandbox('noise\nresult of the function: [1.0, "a"]\n')

    (result,) = await run_cases(sandbox, "def f(a, b): ...", [case], function="f", limits=LIMITS)  # type: ignore[arg-type]

    assert result.passes
    assert sandbox.jobs[0].stdin == "[1, [2]]"


@pytest.mark.anyio
async def test_feedback_says_what_failed() -> None:
    cases = [CodeCase(given="1", expected="2"), CodeCase(given="1", expected="3")]
    results = await run_cases(FakeSandbox("3"), "code", cases, function="", limits=LIMITS)  # type: ignore[arg-type]

    text = feedback_text(cases, results)

    assert "Case 1: FAIL\nInput:\n1\nExpected:\n2\nActual:\n3" in text
    assert "Case 2: PASS" in text


@pytest.mark.anyio
async def test_code_that_does_not_end_well_fails_and_a_sandbox_that_fails_is_a_failure() -> None:
    case = [CodeCase(given="", expected="")]
    late = FakeSandbox("", outcome=Outcome.TIMEOUT)
    (result,) = await run_cases(late, "while True: pass", case, function="", limits=LIMITS)  # type: ignore[arg-type]
    assert (result.passes, result.outcome) == (False, Outcome.TIMEOUT)
    (result,) = await run_cases(FakeSandbox(""), "", case, function="", limits=LIMITS)  # type: ignore[arg-type]
    assert not result.passes, "no code"

    class Broken:
        async def run(self, job: Job) -> JobResult:
            raise SandboxError("gone", code="sandbox.gone")

    with raises_code(RolloutFailed, "rollout.sandbox_failed") as failure:
        await run_cases(Broken(), "code", case, function="", limits=LIMITS)  # type: ignore[arg-type]
    assert failure.value.boundary is Boundary.ENVIRONMENT
