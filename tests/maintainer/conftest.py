"""The program of the maintainer without the time of its imports."""

import pytest

from tests.fakes.forking import ForkingProgram, ForkingPython


@pytest.fixture(scope="session")
def program(forking_python: ForkingPython) -> ForkingProgram:
    """Takes the place of `python -m maintainer`."""
    return ForkingProgram(forking_python, "maintainer")
