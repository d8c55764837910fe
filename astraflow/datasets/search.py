"""Published questions that are answered by searching."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION
from astraflow.datasets.known import KnownOptions, KnownPrompts, Published, filled, known_name
from astraflow.runtime.overrides import SetBy

SEARCH_SETS = {
    "asearcher": Published(
        hub="inclusionAI/ASearcher-train-data",
        split="train",
        files=("ASearcher-Base-35k.jsonl",),  # the repository has another file with other columns
        wanted={"question": (str,), "answer": (str, int, float, list)},
    ),
}
"""By name."""


class SearchOptions(KnownOptions):
    """Which questions, and how they are put."""

    template: Annotated[str, SetBy.AGENT] = "{question}"
    """What the policy is asked; the workflow says how to search."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_name(name, SEARCH_SETS)


@datasets.register("search", options=SearchOptions)
class Search(KnownPrompts):
    """Fields: question, answer, answers (that one and its other forms), source."""

    def __init__(self, options: SearchOptions, _seed: int) -> None:
        super().__init__(options, SEARCH_SETS[options.name], partial(_fields, options.template))


def _fields(template: str, row: Mapping[str, Json], where: str) -> dict[str, Json]:
    answers = list(dict.fromkeys([*_listed(row["answer"]), *_listed(row.get("aug_answer"))]))
    if not answers:
        raise InvalidInput(f"{where}: there is no answer")
    return {
        QUESTION: filled(template, question=str(row["question"])),
        ANSWER: answers[0],
        "answers": list[Any](answers),
        "source": row.get("source"),
    }


def _listed(value: Json) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for item in values if item is not None and (text := str(item).strip())]
