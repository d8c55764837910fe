"""A fake dataflow and a web process that follows it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, running_web


@pytest.fixture
def fake() -> FakeControlPlane:
    return FakeControlPlane(sequence=150)


@pytest.fixture
async def web(fake: FakeControlPlane, tmp_path: Path) -> AsyncIterator[RunningWeb]:
    """Shows the fake's first report already."""
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow) as running:
        await running.until_fed()
        yield running
