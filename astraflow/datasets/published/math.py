"""Published mathematical problems, each with one correct answer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION
from astraflow.datasets.published.loading import (
    PublishedOptions,
    PublishedPrompts,
    PublishedSet,
    check_set_name,
    fill_template,
)
from astraflow.datasets.tables.base import RequiredFields, value_text
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.data_root import RemoteSource


@dataclass(frozen=True, slots=True, kw_only=True)
class MathSet:
    """Location of a set, and the names of its fields."""

    hub: str
    split: str
    question: str = "problem"
    answer: str = "answer"
    level: str = ""
    subject: str = ""
    source: str = ""
    """Field with the origin of the problem; empty if there is none."""
    config: str = ""

    @property
    def published(self) -> PublishedSet:
        """Location and required fields for the loader."""
        required_fields: RequiredFields = {self.question: (str, list), self.answer: (str, int, float, dict)}
        return PublishedSet(hub=self.hub, split=self.split, config=self.config, required_fields=required_fields)


MATH_SETS = {
    "deepscaler": MathSet(hub="agentica-org/DeepScaleR-Preview-Dataset", split="train"),
    "dapo": MathSet(
        hub="open-r1/DAPO-Math-17k-Processed",
        config="en",
        split="train",
        question="prompt",
        answer="solution",
        subject="ability",
        source="data_source",
    ),
    "dapo_filter": MathSet(
        hub="aaabiao/dapo_filter",
        split="train",
        question="prompt",
        answer="reward_model",
        subject="ability",
        source="data_source",
    ),
    "aime24": MathSet(hub="HuggingFaceH4/aime_2024", split="train", source="url"),
    "aime25": MathSet(hub="math-ai/aime25", split="test"),
    "amc": MathSet(hub="math-ai/amc23", split="test", question="question", source="url"),
    "amc24": MathSet(hub="rawsh/2024_AMC12", split="train"),
    "minerva": MathSet(hub="math-ai/minervamath", split="test", question="question"),
    "olympiadbench": MathSet(hub="math-ai/olympiadbench", split="test", answer="solution", subject="subfield"),
    "math500": MathSet(
        hub="HuggingFaceH4/MATH-500", split="test", level="level", subject="subject", source="unique_id"
    ),
}
"""Sets by name."""

_OWN_INSTRUCTION = re.compile(
    r"\s*Let'?s\s+think\s+step\s+by\s+step\s+and\s+output\s+the\s+final\s+answer\s+within\s*\\boxed\{\}\.\s*\Z"
)
"""Last sentence of the problems of some sets; the template has its own."""

_BOXED = re.compile(r"\A\s*\$?\s*\\boxed\{((?:(?!\\boxed).)*)\}\s*\$?\s*\Z", re.DOTALL)
"""Answer that is nothing but one box."""


class MathOptions(PublishedOptions):
    """Problems to use, and their template."""

    template: Annotated[str, SettableBy.AGENT] = (
        "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    """Prompt; `{question}` is the problem."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return check_set_name(name, MATH_SETS)

    def remote_source(self) -> RemoteSource | None:
        """Returns the repository on the hub; None for a copy or a sample."""
        return self._hub_source(MATH_SETS[self.name].published)

    @field_validator("template")
    @classmethod
    def _asks(cls, template: str) -> str:
        if "{question}" not in template:
            raise ValueError("the template must contain {question}")
        return template


@datasets.register("math", options=MathOptions)
class Math(PublishedPrompts):
    """Mathematical problems of published sets.

    Fields: question, answer, problem (without the template), level, subject, source (null if the set has none).
    """

    def __init__(self, options: MathOptions, _seed: int) -> None:
        math_set = MATH_SETS[options.name]
        super().__init__(options, math_set.published, partial(_fields, math_set, options.template))


def _fields(math_set: MathSet, template: str, row: Mapping[str, Json], where: str) -> dict[str, Json]:
    problem = _OWN_INSTRUCTION.sub("", _problem(row[math_set.question], where))
    return {
        QUESTION: fill_template(template, question=problem),
        ANSWER: _answer(row[math_set.answer], where),
        "problem": problem,
        "level": row.get(math_set.level),
        "subject": row.get(math_set.subject),
        "source": row.get(math_set.source),
    }


def _problem(value: Json, where: str) -> str:
    """Returns the problem: text, or a list with the only message of a chat. Raises: InvalidInput."""
    if not isinstance(value, list):
        return str(value)
    match value:
        case [{"content": str(content)}]:
            return content
    raise InvalidInput(
        f"cannot read {where}: the problem is not one message with text; correct the row",
        code="dataset.no_question",
    )


def _answer(value: Json, where: str) -> str:
    """Returns the answer as text, without a box around all of it; whole numbers in a column of floats lose their
    fraction. Raises: InvalidInput."""
    if isinstance(value, dict):
        value = value.get("ground_truth")
    if not isinstance(value, str | int | float):
        raise InvalidInput(f"cannot read {where}: the row has no answer; correct the row", code="dataset.no_answer")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else value_text(value)
    boxed = _BOXED.match(text)
    return boxed[1] if boxed else text
