"""Published programming problems with tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import Field, field_validator

from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION
from astraflow.datasets.code_tests import bounded, deepcoder_tests, livecodebench_tests
from astraflow.datasets.known import KnownOptions, KnownPrompts, Published, filled, known_name
from astraflow.runtime.overrides import SetBy


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem, whatever set it is from."""

    text: str
    tests: list[Json]
    starter_code: str = ""
    """What the solution begins with, or the signature that it must have."""
    solution: str = ""
    """A right one, if the set has any."""
    level: Json = None
    source: Json = None

    @property
    def function(self) -> str:
        """What the tests call; empty when they run a program."""
        first = self.tests[0] if self.tests else None
        return str(first.get("function", "")) if isinstance(first, dict) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSet:
    """Where a set is, and how its rows are read."""

    published: Published
    read: Callable[[Mapping[str, Json], str], Problem]


def _deepcoder(row: Mapping[str, Json], where: str) -> Problem:
    facts, solutions = row.get("metadata"), row.get("solutions")
    function = str(facts.get("func_name") or "") if isinstance(facts, dict) else ""
    return Problem(
        text=str(row["problem"]),
        tests=deepcoder_tests(row["tests"], function, where),
        starter_code=str(row.get("starter_code") or ""),
        solution=str(solutions[0]) if isinstance(solutions, list) and solutions else "",
    )


def _livecodebench(row: Mapping[str, Json], where: str) -> Problem:
    public, private = str(row["public_test_cases"]), str(row["private_test_cases"])
    return Problem(
        text=str(row["question_content"]),
        tests=livecodebench_tests(public, private, str(row.get("metadata") or ""), where),
        starter_code=str(row.get("starter_code") or ""),
        level=row.get("difficulty"),
        source=row.get("platform"),
    )


def _humaneval(row: Mapping[str, Json], _where: str) -> Problem:
    function, prompt = str(row["entry_point"]), str(row["prompt"])
    return Problem(
        text=f"Write the Python function `{function}`; its docstring says what it does.",
        tests=[{"kind": "check", "function": function, "code": str(row["test"])}],
        starter_code=prompt,
        solution=prompt + str(row.get("canonical_solution") or ""),
        source=row.get("task_id"),
    )


def _deepcoder_part(config: str, split: str) -> CodeSet:
    wanted = {"problem": (str,), "tests": (str, list, dict)}
    hub = "agentica-org/DeepCoder-Preview-Dataset"
    return CodeSet(published=Published(hub=hub, config=config, split=split, wanted=wanted), read=_deepcoder)


def _livecodebench_release(file: str) -> CodeSet:
    wanted = {"question_content": (str,), "public_test_cases": (str,), "private_test_cases": (str,)}
    hub = "livecodebench/code_generation_lite"  # its card leads to a script, which is not run
    return CodeSet(published=Published(hub=hub, split="test", files=(file,), wanted=wanted), read=_livecodebench)


CODE_SETS = {
    "deepcoder": _deepcoder_part("primeintellect", "train"),
    "deepcoder_taco": _deepcoder_part("taco", "train"),
    "deepcoder_lcb": _deepcoder_part("lcbv5", "train"),
    "codeforces": _deepcoder_part("codeforces", "test"),
    "livecodebench_v5": _livecodebench_release("test5.jsonl"),
    "livecodebench_v6": _livecodebench_release("test6.jsonl"),
    "humaneval": CodeSet(
        published=Published(
            hub="openai/openai_humaneval",
            split="test",
            wanted={"prompt": (str,), "test": (str,), "entry_point": (str,)},
        ),
        read=_humaneval,
    ),
}
"""By name."""


class CodeOptions(KnownOptions):
    """Which problems, how they are put, and how many of their tests go with them."""

    template: Annotated[str, SetBy.AGENT] = (
        "{question}\n\nRead the input from stdin and write the output to stdout. "
        "Put the whole program into one block:\n\n```python\n# your code\n```"
    )
    """What the policy is asked when the solution is a program; `{question}` is the problem."""
    starter_template: Annotated[str, SetBy.AGENT] = (
        "{question}\n\nBegin with this code and put the whole solution into one block:\n\n"
        "```python\n{starter_code}\n```"
    )
    """The same when the solution begins with `{starter_code}`."""
    function_template: Annotated[str, SetBy.AGENT] = (
        "{question}\n\nPut the whole solution, with the function `{function}`, into one block:\n\n"
        "```python\n# your code\n```"
    )
    """The same when the tests call `{function}` and there is no code to begin with."""
    max_tests_bytes: int = Field(default=1_000_000, ge=1)
    """Tests of one problem, as JSON: the largest are left out until the rest fits. Every task carries them to its node,
    and some problems have tens of MB. The field `tests_left_out` says how many are missing."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_name(name, CODE_SETS)


@datasets.register("code", options=CodeOptions)
class Code(KnownPrompts):
    """Fields: question, answer (a right solution, or empty), problem, starter_code, function, tests (see
    `code_tests`), tests_left_out, level, source."""

    def __init__(self, options: CodeOptions, _seed: int) -> None:
        found = CODE_SETS[options.name]
        super().__init__(options, found.published, partial(_fields, found, options))


def _fields(found: CodeSet, options: CodeOptions, row: Mapping[str, Json], where: str) -> dict[str, Json]:
    problem = found.read(row, where)
    tests, left_out = bounded(problem.tests, options.max_tests_bytes)
    return {
        QUESTION: _question(problem, options),
        ANSWER: problem.solution,
        "problem": problem.text,
        "starter_code": problem.starter_code,
        "function": problem.function,
        "tests": tests,
        "tests_left_out": left_out,
        "level": problem.level,
        "source": problem.source,
    }


def _question(problem: Problem, options: CodeOptions) -> str:
    template = options.function_template if problem.function else options.template
    return filled(
        options.starter_template if problem.starter_code else template,
        starter_code=problem.starter_code,
        function=problem.function,
        question=problem.text,
    )
