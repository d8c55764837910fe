"""Watched reports: a watcher of a large fleet gets nodes at the rate that it requests, and all else each second."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from astraflow.dataflow.history.history import History
from astraflow.dataflow.operations.control_servicer import ControlService
from astraflow.wire.pb import control_plane_pb2 as pb
from tests import make
from tests.dataflow.test_history import opened, report

pytestmark = pytest.mark.anyio

NODES = tuple(make.node_report(f"node-{index}.1") for index in range(6))


class Watched:
    """A control service without a run, and its history."""

    def __init__(self, history: History) -> None:
        self.history = history
        part = cast("Any", None)  # not used by watches
        self.service = ControlService(
            part, history, lambda: report(0), membership=part, credentials=part, ports=part, recommender=part
        )

    def watch(self, *, nodes_per_s: int) -> AsyncIterator[pb.Report]:
        return self.service.WatchReport(pb.WatchReportRequest(nodes_per_s=nodes_per_s), None)

    def add(self, second: int) -> None:
        self.history.add(replace(report(second), nodes=NODES))


async def seconds_with_nodes(watched: Watched, *, nodes_per_s: int, seconds: list[int]) -> list[int]:
    """Adds reports, each received before the next, and returns those with nodes; the others say that they have none."""
    watch, with_nodes = watched.watch(nodes_per_s=nodes_per_s), list[int]()
    for second in seconds:
        watched.add(second)
        message = await anext(watch)
        assert (message.sequence, message.run) == (second, report(second).run)
        assert message.is_without_nodes is not bool(message.nodes)
        with_nodes += [second] if len(message.nodes) == len(NODES) else []
    return with_nodes


@pytest.mark.parametrize(
    ("nodes_per_s", "with_nodes"), [(0, range(7, 14)), (24, range(7, 14)), (6, [7, 8, 10, 12]), (2, [7, 9, 12])]
)
async def test_reports_of_a_large_fleet_contain_nodes_every_few_seconds(
    tmp_path: Path, nodes_per_s: int, with_nodes: list[int]
) -> None:
    async with opened(tmp_path) as history:
        seconds = list(range(7, 14))
        assert await seconds_with_nodes(Watched(history), nodes_per_s=nodes_per_s, seconds=seconds) == list(with_nodes)


async def test_a_watcher_that_misses_a_report_with_nodes_gets_them_with_its_next_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as history:
        assert await seconds_with_nodes(Watched(history), nodes_per_s=2, seconds=[7, 8, 10, 11, 14]) == [7, 10, 14]


async def test_each_report_is_encoded_once_for_all_watchers_with_nodes_and_once_without(tmp_path: Path) -> None:
    async with opened(tmp_path) as history:
        watched = Watched(history)
        watches = [watched.watch(nodes_per_s=rate) for rate in (0, 2, 2)]
        messages = []
        for second in (7, 8):
            watched.add(second)
            messages.append([await anext(watch) for watch in watches])
        (first, *same), (full, light, other) = messages
        assert all(message is first for message in same)
        assert full is not light
        assert light is other
