"""Processes of runs, which fork: the time of their imports is most of the time of a short run."""

import pytest


@pytest.fixture(autouse=True)
def processes(request: pytest.FixtureRequest) -> None:
    """Lets the programs of a run fork. Tests of how programs start have the marker `real_processes`."""
    if request.node.get_closest_marker("slow") and not request.node.get_closest_marker("real_processes"):
        request.getfixturevalue("forked_programs")
