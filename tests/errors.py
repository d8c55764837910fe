"""Assertions about errors: by their code, which is stable, and by the values that they quote."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from astraflow.contract.errors import AstraFlowError

Kind = TypeVar("Kind", bound=AstraFlowError)


@contextmanager
def raises_code(kind: type[Kind], code: str, *quoted: str) -> Iterator[pytest.ExceptionInfo[Kind]]:
    """Expects the block to raise a `kind` with exactly this code, whose message contains each of the `quoted` values.

    >>> from astraflow.contract.errors import InvalidInput
    >>> with raises_code(InvalidInput, "flow.unknown", "train") as caught:
    ...     raise InvalidInput("cannot pause flow 'train': no such flow", code="flow.unknown")
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, f"code {caught.value.code!r} instead of {code!r}: {caught.value}"
    lacking = [value for value in quoted if value not in str(caught.value)]
    assert not lacking, f"not quoted: {lacking} in {str(caught.value)!r}"
