"""Published mathematical problems, each with one correct answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import field_validator

from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION
from astraflow.datasets.published import PublishedOptions, PublishedPrompts, PublishedSet, check_set_name, fill_template
from astraflow.datasets.tables.base import RequiredFields
from astraflow.runtime.setting_permissions import SettableBy


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
        required_fields: RequiredFields = {self.question: (str,), self.answer: (str, int, float)}
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
    "aime24": MathSet(hub="HuggingFaceH4/aime_2024", split="train", source="url"),
    "aime25": MathSet(hub="math-ai/aime25", split="test"),
    "amc": MathSet(hub="math-ai/amc23", split="test", question="question", source="url"),
    "minerva": MathSet(hub="math-ai/minervamath", split="test", question="question"),
    "math500": MathSet(
        hub="HuggingFaceH4/MATH-500", split="test", level="level", subject="subject", source="unique_id"
    ),
}
"""Sets by name."""


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

    @field_validator("template")
    @classmethod
    def _asks(cls, template: str) -> str:
        if "{question}" not in template:
            raise ValueError("the template must contain {question}")
        return template


@datasets.register("math", options=MathOptions)
class Math(PublishedPrompts):
    """Fields: question, answer, problem (without the template), level, subject, source (null if the set has none)."""

    def __init__(self, options: MathOptions, _seed: int) -> None:
        math_set = MATH_SETS[options.name]
        super().__init__(options, math_set.published, partial(_fields, math_set, options.template))


def _fields(math_set: MathSet, template: str, row: Mapping[str, Json], _where: str) -> dict[str, Json]:
    problem = str(row[math_set.question])
    return {
        QUESTION: fill_template(template, question=problem),
        ANSWER: _text(row[math_set.answer]),
        "problem": problem,
        "level": row.get(math_set.level),
        "subject": row.get(math_set.subject),
        "source": row.get(math_set.source),
    }


def _text(answer: Json) -> str:
    """Returns the answer as text; whole numbers in a column of floats lose their fraction."""
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)
