"""Reward for programs that pass the tests of a problem."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import rewards
from astraflow.rewards.base import Score
from astraflow.rewards.code_blocks import last_python_block
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import Job, JobLimits, JobResult, Outcome
from astraflow.sandbox.shared import SharedSandbox

_HARNESS = Path(__file__).with_name("code_harness.py").read_text()
_NUMBER = re.compile(rb"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_WHOLE = re.compile(rb"-?[0-9]+")
_UNDEFINED = "undefined "
"""Output of a check that calls what neither it nor the problem's code defines, before the name."""
_NEAR_ZERO = 1e-8
"""Difference up to which a number is correct however small the expected one is, as in the tests of APPS: rounding makes
1e-17 of 0, of which no relative difference is small."""


class CodeTestsOptions(Config):
    """Sandbox, scoring and limits."""

    sandbox: Annotated[dict[str, Any], SettableBy.RECIPE, sandboxes] = Field(default={"kind": "local"})
    """Sandbox: its kind and options. Flows with equal ones share it."""
    tests_field: Annotated[str, SettableBy.AGENT] = "tests"
    """Field of the prompt with the tests."""
    scoring: Annotated[Literal["all", "share"], SettableBy.AGENT] = "all"
    """`all`: 1 when every test passes, else 0, and the tests after the first failure are not run. `share`: the share of
    tests that pass."""
    case_cpu_s: Annotated[float, Field(gt=0)] = 6.0
    """Limit of processor time of one test, rounded up to whole seconds."""
    case_wall_s: Annotated[float, Field(gt=0)] = 18.0
    """Limit of one test by the clock. Longer than `case_cpu_s`, so that a busy node fails no correct program."""
    program_wall_s: Annotated[float, Field(gt=0), SettableBy.AGENT] = 100.0
    """Limit of all tests of a completion by the clock, without the time that they wait for a worker of the sandbox.
    Tests that it leaves no time for count as timeouts."""
    memory_mib: Annotated[int, Field(ge=16), SettableBy.OPERATOR] = 512
    """Memory of a test beyond that of the interpreter. MiB."""
    output_bytes: Annotated[int, Field(ge=1), SettableBy.OPERATOR] = 2**20
    """Limit of a program's output. More is a wrong answer."""
    processes: Annotated[int, Field(ge=2), SettableBy.OPERATOR] = 16
    """Processes and threads of a test."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-6
    """Relative difference up to which a number is correct where the expected one has a decimal point or an exponent; a
    difference of 1e-8 is always correct there. Other numbers are compared exactly."""

    @property
    def prompt_fields(self) -> tuple[tuple[str, ...], ...]:
        """Fields of the prompt that the reward needs."""
        return ((self.tests_field,),)


@rewards.register("code_tests", options=CodeTestsOptions)
class CodeTests:
    """Runs the last complete block of Python in the completion against the problem's tests, in a sandbox.

    Without one the reward is 0. The expected values of the tests stay outside of the sandbox. A sandbox that fails
    makes the reward fail, which is not a reward of 0.
    """

    def __init__(self, options: CodeTestsOptions) -> None:
        self._options = options
        self._sandbox = SharedSandbox(options.sandbox)

    async def start(self) -> None:
        """Starts the sandbox. Raises: SandboxError."""
        await self._sandbox.start()

    async def close(self) -> None:
        """Releases the sandbox."""
        await self._sandbox.close()

    async def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """Returns the score with the solution as its answer.

        Terms: `tests_passed`, the share of all tests, and `tests_failed`, `tests_timeout`, `tests_memory` and
        `tests_crashed`, the shares that ended so. Raises: InvalidInput for unusable tests; SandboxError.
        """
        tests = self._tests(prompt)
        code = last_python_block(completion, function=str(tests[0].get("function", "")))
        if not code:
            return Score(value=0.0, terms=_terms(Counter(), len(tests)))
        outcomes = await self._outcomes(code, tests, prompt)
        passed = outcomes[Outcome.PASSED] / len(tests)
        value = passed if self._options.scoring == "share" else float(passed == 1.0)
        return Score(value=value, answer=code, terms=_terms(outcomes, len(tests)))

    def _tests(self, prompt: Prompt) -> list[Mapping[str, Any]]:
        tests = prompt.fields.get(self._options.tests_field)
        if not isinstance(tests, list) or not tests or not all(_is_test(test) for test in tests):
            raise InvalidInput(
                f"cannot score prompt {prompt.id!r}: field {self._options.tests_field!r} holds no tests; use a data "
                "set with tests such as `code`, or set tests_field",
                code="reward.no_tests",
            )
        return [test for test in tests if isinstance(test, dict)]

    async def _outcomes(self, code: str, tests: list[Mapping[str, Any]], prompt: Prompt) -> Counter[Outcome]:
        outcomes: Counter[Outcome] = Counter()
        left_s = self._options.program_wall_s
        for index, test in enumerate(tests):
            if left_s <= 0:
                outcomes[Outcome.TIMEOUT] += len(tests) - index
                break
            outcome, wall_s = await self._outcome(code, test, prompt, left_s)
            left_s -= wall_s
            outcomes[outcome] += 1
            if outcome is not Outcome.PASSED and self._options.scoring == "all":
                break
        return outcomes

    async def _outcome(
        self, code: str, test: Mapping[str, Any], prompt: Prompt, left_s: float
    ) -> tuple[Outcome, float]:
        """Returns the outcome of a test and the seconds that the program ran."""
        options = self._options
        limits = JobLimits(
            wall_s=min(options.case_wall_s, left_s),
            cpu_s=options.case_cpu_s,
            memory_bytes=options.memory_mib * 2**20,
            output_bytes=options.output_bytes,
            processes=options.processes,
        )
        result = await self._sandbox.run(test_job(code, test, limits))
        if test["kind"] == "check" and result.stdout.startswith(_UNDEFINED):
            raise _undefined(result.stdout.removeprefix(_UNDEFINED).strip(), prompt)
        if result.outcome is Outcome.PASSED and not is_correct(test, result, options.tolerance):
            return Outcome.FAILED, result.wall_s
        return result.outcome, result.wall_s


def test_job(code: str, test: Mapping[str, Any], limits: JobLimits) -> Job:
    """Returns the job that runs code for a test, whose expected values are not part of it."""
    prompt = test.get("prompt", "")
    return Job(
        source=f"main({test['kind']!r})",
        library=_HARNESS,
        stdin=_input(test),
        files={"solution.py": code} | ({"prompt.py": prompt} if prompt else {}),
        limits=limits,
    )


def equal_texts(printed: str, expected: str, tolerance: float) -> bool:
    """Returns whether two outputs have equal words, line by line, up to spaces and empty ends, and up to the tolerance
    where the expected word is a number with a decimal point or an exponent.

    >>> equal_texts("1 0.3333333\\n", "1.0 0.33333333", 1e-6), equal_texts("10", "0010", 1e-6)
    (True, False)
    """
    lines, expected_lines = _words(printed), _words(expected)
    return len(lines) == len(expected_lines) and all(
        len(words) == len(expected_words)
        and all(_equal_words(word, other, tolerance) for word, other in zip(words, expected_words, strict=True))
        for words, expected_words in zip(lines, expected_lines, strict=True)
    )


def equal_values(value: Any, expected: Any, tolerance: float) -> bool:
    """Returns whether two JSON values are equal, up to the tolerance where the expected one is a number with a decimal
    point or an exponent.

    >>> equal_values([1, 0.1 + 0.2], [1, 0.3], 1e-6), equal_values(999999000.0, 999999937, 1e-6)
    (True, False)
    """
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(
            equal_values(item, other, tolerance) for item, other in zip(value, expected, strict=True)
        )
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            equal_values(value[key], expected[key], tolerance) for key in expected
        )
    if isinstance(expected, float) and isinstance(value, int | float):
        return value == expected or _is_close(value, expected, tolerance)
    return bool(value == expected)


def _words(text: str) -> list[list[bytes]]:
    """Returns the words of each line, without empty lines at both ends. Only ASCII separates words and lines."""
    lines = [line.split() for line in text.encode(errors="surrogatepass").split(b"\n")]
    filled = [index for index, words in enumerate(lines) if words]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _equal_words(word: bytes, expected: bytes, tolerance: float) -> bool:
    """Compares numbers in the form in which programs print them; everything else, such as 007 or 1_000, as texts."""
    if word == expected or not (_NUMBER.fullmatch(word) and _NUMBER.fullmatch(expected)):
        return word == expected
    number, other = Decimal(word.decode()), Decimal(expected.decode())
    return number == other or (not _WHOLE.fullmatch(expected) and _is_close(number, other, tolerance))


def _is_close(value: float | Decimal, expected: float | Decimal, tolerance: float) -> bool:
    try:
        numbers = float(value), float(expected)
    except OverflowError:  # a whole number beyond the range of floats
        return False
    return all(map(math.isfinite, numbers)) and math.isclose(*numbers, rel_tol=tolerance, abs_tol=_NEAR_ZERO)


def _is_test(test: object) -> bool:
    match test:
        case {"kind": "stdin", "input": str(), "output": str()}:
            return True
        case {"kind": "call", "function": str(), "arguments": list(), "expected": list()}:
            return True
        case {"kind": "check", "function": str(), "code": str(), "prompt": prompt}:
            return isinstance(prompt, str)
        case {"kind": "check", "function": str(), "code": str()}:
            return True
    return False


def _undefined(name: str, prompt: Prompt) -> InvalidInput:
    return InvalidInput(
        f"cannot score prompt {prompt.id!r}: a check of its tests calls {name!r}, which neither the check nor the code "
        "of the problem defines; add the code that the problem gives to the test, as its field `prompt`",
        code="reward.undefined_name",
    )


def _input(test: Mapping[str, Any]) -> str:
    """Returns the standard input of a test, without its expected values."""
    if test["kind"] == "stdin":
        return str(test["input"])
    names = ("function", "arguments") if test["kind"] == "call" else ("function", "code", "prompt")
    return json.dumps({name: test.get(name, "") for name in names})


def is_correct(test: Mapping[str, Any], result: JobResult, tolerance: float) -> bool:
    """Returns whether the output of a job that ended well is the expected one."""
    if result.is_output_cut:
        return False
    if test["kind"] == "stdin":
        return equal_texts(result.stdout, test["output"], tolerance)
    if test["kind"] == "check":
        return result.stdout == "passed\n"
    try:
        value = json.loads(result.stdout)
    except (ValueError, RecursionError):
        return False
    return any(equal_values(value, expected, tolerance) for expected in test["expected"])


def _terms(outcomes: Mapping[Outcome, int], count: int) -> dict[str, float]:
    return {f"tests_{outcome.value}": outcomes.get(outcome, 0) / count for outcome in Outcome}
