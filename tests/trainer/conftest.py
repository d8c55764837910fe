"""Ranks of trainers, whose processes import torch once."""

from collections.abc import Iterator

import pytest

from tests.fakes.forked_python import forked_python
from tests.fakes.forking import ForkingProgram


@pytest.fixture(scope="session")
def rank_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkingProgram]:
    """Takes the place of `python` for programs of ranks."""
    program = forked_python(tmp_path_factory.mktemp("ranks"))
    yield program
    program.close()
