"""Published programming problems with tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import Field, field_validator

from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION
from astraflow.datasets.published.code_tests import deepcoder_tests, limit_tests, livecodebench_tests
from astraflow.datasets.published.loading import (
    PublishedOptions,
    PublishedPrompts,
    PublishedSet,
    check_set_name,
    fill_template,
)
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.data_root import RemoteSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem, in a form common to all sets."""

    text: str
    tests: list[Json]
    starter_code: str = ""
    """Code that the solution begins with, or its required signature."""
    solution: str = ""
    """A correct solution; empty if the set has none."""
    level: Json = None
    source: Json = None

    @property
    def function(self) -> str:
        """Function that the tests call; empty when they run a program."""
        first = self.tests[0] if self.tests else None
        return str(first.get("function", "")) if isinstance(first, dict) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSet:
    """Location of a set, and how to read its rows."""

    published: PublishedSet
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


def _areal(row: Mapping[str, Json], where: str) -> Problem:
    return Problem(
        text=str(row["question"]),
        tests=deepcoder_tests(row["input_output"], "", where),
        starter_code=str(row.get("starter_code") or ""),
    )


def _humaneval(row: Mapping[str, Json], _where: str) -> Problem:
    function, prompt = str(row["entry_point"]), str(row["prompt"])
    return Problem(
        text=f"Write the Python function `{function}`; its docstring says what it does.",
        tests=[{"kind": "check", "function": function, "code": str(row["test"]), "prompt": prompt}],
        starter_code=prompt,
        solution=prompt + str(row.get("canonical_solution") or ""),
        source=row.get("task_id"),
    )


def _deepcoder_part(config: str, split: str) -> CodeSet:
    required_fields = {"problem": (str,), "tests": (str, list, dict)}
    hub = "agentica-org/DeepCoder-Preview-Dataset"
    return CodeSet(
        published=PublishedSet(hub=hub, config=config, split=split, required_fields=required_fields), read=_deepcoder
    )


def _livecodebench_release(file: str) -> CodeSet:
    required_fields = {"question_content": (str,), "public_test_cases": (str,), "private_test_cases": (str,)}
    hub = "livecodebench/code_generation_lite"  # its card refers to a script, which is not executed
    return CodeSet(
        published=PublishedSet(hub=hub, split="test", files=(file,), required_fields=required_fields),
        read=_livecodebench,
    )


CODE_SETS = {
    "deepcoder": _deepcoder_part("primeintellect", "train"),
    "deepcoder_taco": _deepcoder_part("taco", "train"),
    "deepcoder_lcb": _deepcoder_part("lcbv5", "train"),
    "codeforces": _deepcoder_part("codeforces", "test"),
    "livecodebench_v5": _livecodebench_release("test5.jsonl"),
    "livecodebench_v6": _livecodebench_release("test6.jsonl"),
    "lcb_v5": CodeSet(
        published=PublishedSet(
            hub="inclusionAI/AReaL-boba-2-RL-Code",
            split="test",
            files=("code_benchmark/lcb_v5/test.jsonl",),
            required_fields={"question": (str,), "input_output": (str, dict)},
        ),
        read=_areal,
    ),
    "humaneval": CodeSet(
        published=PublishedSet(
            hub="openai/openai_humaneval",
            split="test",
            required_fields={"prompt": (str,), "test": (str,), "entry_point": (str,)},
        ),
        read=_humaneval,
    ),
}
"""Sets by name."""


class CodeOptions(PublishedOptions):
    """Problems to use, their templates, and a bound on their tests."""

    template: Annotated[str, SettableBy.AGENT] = (
        "{question}\n\nRead the input from stdin and write the output to stdout. "
        "Put the whole program into one block:\n\n```python\n# your code\n```"
    )
    """Prompt when the solution is a program; `{question}` is the problem."""
    starter_template: Annotated[str, SettableBy.AGENT] = (
        "{question}\n\nBegin with this code and put the whole solution into one block:\n\n"
        "```python\n{starter_code}\n```"
    )
    """Prompt when the solution begins with `{starter_code}`."""
    function_template: Annotated[str, SettableBy.AGENT] = (
        "{question}\n\nPut the whole solution, with the function `{function}`, into one block:\n\n"
        "```python\n# your code\n```"
    )
    """Prompt when the tests call `{function}` and there is no starter code."""
    max_tests_bytes: int = Field(default=1_000_000, ge=1)
    """Bound of the tests of one problem as JSON: the largest are left out until the rest fits. Every task carries them
    to its node, and some problems have tens of MB. The field `tests_left_out` contains the number of missing tests."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return check_set_name(name, CODE_SETS)

    def remote_source(self) -> RemoteSource | None:
        """Returns the repository on the hub; None for a copy or a sample."""
        return self._hub_source(CODE_SETS[self.name].published)


@datasets.register("code", options=CodeOptions)
class Code(PublishedPrompts):
    """Programming problems of published sets, with their tests.

    Fields: question, answer (a correct solution, or empty), problem, starter_code, function, tests (see
    `code_tests`), tests_left_out, level, source."""

    def __init__(self, options: CodeOptions, _seed: int) -> None:
        code_set = CODE_SETS[options.name]
        super().__init__(options, code_set.published, partial(_fields, code_set, options))


def _fields(code_set: CodeSet, options: CodeOptions, row: Mapping[str, Json], where: str) -> dict[str, Json]:
    problem = code_set.read(row, where)
    tests, left_out = limit_tests(problem.tests, options.max_tests_bytes)
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
    return fill_template(
        options.starter_template if problem.starter_code else template,
        starter_code=problem.starter_code,
        function=problem.function,
        question=problem.text,
    )
