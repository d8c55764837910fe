"""Published sets of mathematical problems, each with one right answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import field_validator

from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION
from astraflow.datasets.known import KnownOptions, KnownPrompts, Published, filled, known_name
from astraflow.datasets.tables.base import Wanted
from astraflow.runtime.overrides import SetBy


@dataclass(frozen=True, slots=True, kw_only=True)
class MathSet:
    """Where a set is, and what its fields are called there."""

    hub: str
    split: str
    question: str = "problem"
    answer: str = "answer"
    level: str = ""
    subject: str = ""
    source: str = ""
    """Field that says where the problem is from."""
    config: str = ""

    @property
    def published(self) -> Published:
        """For the loader."""
        wanted: Wanted = {self.question: (str,), self.answer: (str, int, float)}
        return Published(hub=self.hub, split=self.split, config=self.config, wanted=wanted)


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
"""By name."""


class MathOptions(KnownOptions):
    """Which problems, and how they are put."""

    template: Annotated[str, SetBy.AGENT] = (
        "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    """What the policy is asked; `{question}` is the problem."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_name(name, MATH_SETS)

    @field_validator("template")
    @classmethod
    def _asks(cls, template: str) -> str:
        if "{question}" not in template:
            raise ValueError("must have a {question}")
        return template


@datasets.register("math", options=MathOptions)
class Math(KnownPrompts):
    """Fields: question, answer, problem (the bare one), and level, subject, source, null where the set has none."""

    def __init__(self, options: MathOptions, _seed: int) -> None:
        found = MATH_SETS[options.name]
        super().__init__(options, found.published, partial(_fields, found, options.template))


def _fields(found: MathSet, template: str, row: Mapping[str, Json], _where: str) -> dict[str, Json]:
    problem = str(row[found.question])
    return {
        QUESTION: filled(template, question=problem),
        ANSWER: _text(row[found.answer]),
        "problem": problem,
        "level": row.get(found.level),
        "subject": row.get(found.subject),
        "source": row.get(found.source),
    }


def _text(answer: Json) -> str:
    """Some sets hold whole numbers in a column of floats."""
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)
