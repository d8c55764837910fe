"""Rows of a table as prompts: one field is the question and one the answer."""

from typing import Annotated

from pydantic import Field

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import ANSWER, QUESTION, check_index
from astraflow.datasets.tables.base import RequiredFields, RowRange, Table, check_fields, plain, value_text
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class RowOptions(Config):
    """Mapping of rows to prompts."""

    question_field: Annotated[str, SettableBy.AGENT] = QUESTION
    """Field with the question: text."""
    answer_field: Annotated[str, SettableBy.AGENT] = ANSWER
    """Field with the answer: text or a number, which becomes text as it is written in the file; from Parquet and Arrow
    files without an exponent. Empty for rows without answers, whose reward reads other fields or none."""
    fields: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Further fields for workflow and reward; all when empty. Every task carries them over the wire."""
    skip: int = Field(default=0, ge=0)
    """Number of first rows to leave out, such as those that an evaluation uses with `limit`."""
    limit: int = Field(default=0, ge=0)
    """Number of rows to use, after those that are left out; 0: all."""

    @property
    def required_fields(self) -> RequiredFields:
        """Fields that every row must have."""
        answer: RequiredFields = {self.answer_field: (str, int, float)} if self.answer_field else {}
        return {self.question_field: (str,), **answer}


class RowPrompts:
    """Rows in their order; the seed has no effect."""

    def __init__(self, table: Table, options: RowOptions) -> None:
        has_range = options.skip or options.limit
        self._table = RowRange(table, skip=options.skip, limit=options.limit) if has_range else table
        self._options = options

    @property
    def size(self) -> int:
        return self._table.size

    @property
    def fingerprint(self) -> str:
        return self._table.fingerprint

    def prompt(self, index: int) -> Prompt:
        """Returns a row with its fields, and with the question and the answer also under these names."""
        check_index(index, self.size)
        row, options = self._table.row(index), self._options
        check_fields(row, options.required_fields, self._table.where(index))
        selected = {
            field: plain(value) for field, value in row.items() if not options.fields or field in options.fields
        }
        texts = {QUESTION: str(row[options.question_field])}
        if options.answer_field:
            texts[ANSWER] = value_text(row[options.answer_field])
        return Prompt(id=PromptId(self._table.key(index)), fields={**selected, **texts})
