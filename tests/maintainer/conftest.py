"""The program of the maintainer without the time of its imports."""

from collections.abc import Iterator

import pytest

from tests.fakes.forking import ForkingProgram


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkingProgram]:
    """Takes the place of `python -m maintainer`."""
    maintainer = ForkingProgram(tmp_path_factory.mktemp("maintainer"), "maintainer.__main__", "maintainer.mcp_service")
    yield maintainer
    maintainer.close()
