"""Prompts from a local file with one JSON object on each line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.tasks import Json, Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, check_index
from astraflow.runtime.config import Config


class JsonlOptions(Config):
    """Which file, and where in its objects the question and the answer are."""

    path: str
    """File on the machine that runs dataflow."""
    question_field: str = QUESTION
    """Key of the question: text."""
    answer_field: str = ANSWER
    """Key of the answer: text or a number."""


@datasets.register("jsonl", options=JsonlOptions)
class Jsonl:
    """Lines in file order; the seed plays no part. All keys of a line reach the workflow and the reward as fields."""

    def __init__(self, options: JsonlOptions, _seed: int) -> None:
        self._options = options
        self._prompts = list(self._read(Path(options.path).expanduser()))
        if not self._prompts:
            raise InvalidInput(f"dataset {options.path} is empty: it needs one JSON object on each line")

    @property
    def size(self) -> int:
        """Lines that are not blank."""
        return len(self._prompts)

    def prompt(self, index: int) -> Prompt:
        """The line number `index` of those that are not blank."""
        check_index(index, self.size)
        return self._prompts[index]

    def _read(self, path: Path) -> Iterator[Prompt]:
        try:
            with path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield self._parsed(line, number)
        except OSError as problem:
            raise InvalidInput(f"dataset {path.absolute()} cannot be read: {problem.strerror}") from problem

    def _parsed(self, line: bytes, number: int) -> Prompt:
        where = f"{self._options.path}, line {number}"
        try:
            found = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_refuse_constant)
        except UnicodeDecodeError as problem:
            raise InvalidInput(f"{where}: not UTF-8 text (byte {problem.start})") from None
        except (ValueError, RecursionError) as problem:
            raise InvalidInput(f"{where}: not JSON: {problem}") from None
        if not isinstance(found, dict):
            raise InvalidInput(f"{where}: expected a JSON object, found {type(found).__name__}")
        question = _text(found, self._options.question_field, (str,), where)
        answer = _text(found, self._options.answer_field, (str, int, float), where)
        fields: dict[str, Json] = {**found, QUESTION: question, ANSWER: answer}
        return Prompt(id=PromptId(f"line:{number}"), fields=fields)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _text(found: dict[str, Json], field: str, kinds: tuple[type, ...], where: str) -> str:
    value = found.get(field)
    if isinstance(value, bool) or not isinstance(value, kinds):
        state = f"is {type(value).__name__}" if field in found else "is missing"
        wanted = " or ".join({str: "text", int: "a whole number", float: "a number"}[kind] for kind in kinds)
        raise InvalidInput(f"{where}: field {field!r} {state}, expected {wanted}; it has {', '.join(sorted(found))}")
    return str(value)
