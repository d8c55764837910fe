"""Prompts from a local file with one JSON object on each line."""

from typing import Annotated

from astraflow.datasets import datasets
from astraflow.datasets.prompts import RowOptions, RowPrompts
from astraflow.datasets.tables.lines import LineTable
from astraflow.runtime.overrides import SetBy


class JsonlOptions(RowOptions):
    """Which file, and where in its objects the question and the answer are."""

    path: Annotated[str, SetBy.PLACE]
    """File on the machine that runs dataflow."""


@datasets.register("jsonl", options=JsonlOptions)
class Jsonl(RowPrompts):
    """Lines in file order."""

    def __init__(self, options: JsonlOptions, _seed: int) -> None:
        super().__init__(LineTable(options.path, options.wanted), options)
