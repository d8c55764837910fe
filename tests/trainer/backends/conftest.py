"""The program of the ranks, which imports torch once."""

from collections.abc import Iterator

import pytest

from tests.fakes.forking import ForkingProgram


@pytest.fixture(scope="session")
def rank_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkingProgram]:
    """Program of one rank: `tests.trainer.backends.sharding_ranks`."""
    program = ForkingProgram(tmp_path_factory.mktemp("ranks"), "tests.trainer.backends.sharding_ranks")
    yield program
    program.close()
