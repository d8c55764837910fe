"""Rows of a table as prompts, when a field of theirs is the question and another the answer."""

from typing import Annotated

from pydantic import Field

from astraflow.contract.ids import PromptId
from astraflow.contract.tasks import Prompt
from astraflow.datasets.base import ANSWER, QUESTION, check_index
from astraflow.datasets.tables.base import Head, Table, Wanted, check_fields
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy


class RowOptions(Config):
    """How rows become prompts."""

    question_field: Annotated[str, SetBy.AGENT] = QUESTION
    """Field with the question: text."""
    answer_field: Annotated[str, SetBy.AGENT] = ANSWER
    """Field with the answer: text or a number."""
    fields: Annotated[tuple[str, ...], SetBy.AGENT] = ()
    """Fields that go with them to workflow and reward; all when empty. Every task carries them over the wire."""
    limit: int = Field(default=0, ge=0)
    """Only the first so many rows; 0 is all."""

    @property
    def wanted(self) -> Wanted:
        """What every row must have."""
        return {self.question_field: (str,), self.answer_field: (str, int, float)}


class RowPrompts:
    """Rows in their order; the seed plays no part."""

    def __init__(self, table: Table, options: RowOptions) -> None:
        self._table = Head(table, options.limit) if options.limit else table
        self._options = options

    @property
    def size(self) -> int:
        """Rows."""
        return self._table.size

    @property
    def fingerprint(self) -> str:
        """The table's."""
        return self._table.fingerprint

    def prompt(self, index: int) -> Prompt:
        """A row with its fields, the question and the answer also under these names."""
        check_index(index, self.size)
        row, options = self._table.row(index), self._options
        check_fields(row, options.wanted, self._table.where(index))
        kept = {field: value for field, value in row.items() if not options.fields or field in options.fields}
        texts = {QUESTION: str(row[options.question_field]), ANSWER: str(row[options.answer_field])}
        return Prompt(id=PromptId(self._table.key(index)), fields={**kept, **texts})
