"""Prompts from a local file with one JSON object per line."""

from typing import Annotated

from astraflow.datasets import datasets
from astraflow.datasets.files.prompts import RowOptions, RowPrompts
from astraflow.datasets.tables.lines import LineTable
from astraflow.runtime.config.setting_permissions import SettableBy


class JsonlOptions(RowOptions):
    """File to read, and the fields of the question and the answer."""

    path: Annotated[str, SettableBy.DATA_LOCATION]
    """File on the machine that runs dataflow."""


@datasets.register("jsonl", options=JsonlOptions)
class Jsonl(RowPrompts):
    """Lines of a file with one JSON object per line, in file order."""

    def __init__(self, options: JsonlOptions, _seed: int) -> None:
        super().__init__(LineTable(options.path, options.required_fields), options)
