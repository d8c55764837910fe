"""Published questions that are answered by searching."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

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
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.data_root import RemoteSource


def _test_set(folder: str) -> PublishedSet:
    return PublishedSet(
        hub="inclusionAI/ASearcher-test-data",
        split="test",
        files=(f"{folder}/test.jsonl",),
        required_fields={"question": (str,), "answer": (str, int, float, list)},
    )


SEARCH_SETS = {
    "asearcher": PublishedSet(
        hub="inclusionAI/ASearcher-train-data",
        split="train",
        files=("ASearcher-Base-35k.jsonl",),  # the repository has another file with other columns
        required_fields={"question": (str,), "answer": (str, int, float, list)},
    ),
    "triviaqa": _test_set("TriviaQA_rand1000"),
    "popqa": _test_set("PopQA_rand1000"),
    "hotpotqa": _test_set("HotpotQA_rand1000"),
    "bamboogle": _test_set("Bamboogle"),
}
"""Sets by name."""


class SearchOptions(PublishedOptions):
    """Questions to use, and their template."""

    template: Annotated[str, SettableBy.AGENT] = "{question}"
    """Prompt; `{question}` is the question. The workflow explains how to search."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return check_set_name(name, SEARCH_SETS)

    def remote_source(self) -> RemoteSource | None:
        """Returns the repository on the hub; None for a copy or a sample."""
        return self._hub_source(SEARCH_SETS[self.name])


@datasets.register("search", options=SearchOptions)
class Search(PublishedPrompts):
    """Questions of published sets, whose answers are in a corpus.

    Fields: question, answer, answers (the answer and its other forms), source.
    """

    def __init__(self, options: SearchOptions, _seed: int) -> None:
        super().__init__(options, SEARCH_SETS[options.name], partial(_fields, options.template))


def _fields(template: str, row: Mapping[str, Json], where: str) -> dict[str, Json]:
    answers = list(dict.fromkeys([*_listed(row["answer"]), *_listed(row.get("aug_answer"))]))
    if not answers:
        raise InvalidInput(f"cannot read {where}: the row has no answer; correct the row", code="dataset.no_answer")
    return {
        QUESTION: fill_template(template, question=str(row["question"])),
        ANSWER: answers[0],
        "answers": list[Any](answers),
        "source": row.get("source"),
    }


def _listed(value: Json) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for item in values if item is not None and (text := str(item).strip())]
