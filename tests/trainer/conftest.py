"""Ranks of trainers, whose processes import torch once."""

import pytest

from tests.fakes.forking import ForkingProgram, ForkingPython


@pytest.fixture(scope="session")
def rank_python(forking_python: ForkingPython) -> ForkingProgram:
    """Takes the place of `python` for programs of ranks."""
    return ForkingProgram(forking_python)
