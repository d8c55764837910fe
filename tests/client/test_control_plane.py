"""Watched reports: those of a large fleet share nodes that are decoded beside them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.reports.report import Report
from astraflow.wire.channel import ServiceChannel
from astraflow.wire.codecs.converter import to_message
from astraflow.wire.pb import control_plane_pb2 as pb
from tests.fakes.synthetic_run import SyntheticRun

pytestmark = pytest.mark.anyio

RUN = SyntheticRun(nodes=("a", "b", "c", "d", "e", "f"))
REPORTS = [RUN.report(second) for second in range(100, 108)]


class Stream:
    """Connection that sends the reports, and lets other tasks run this often between two of them.

    nodes_every: reports of which one has nodes, as a service sends them that admits the requested rate.
    """

    def __init__(self, turns: int, *, nodes_every: int = 1) -> None:
        self.channel = grpc.aio.insecure_channel("127.0.0.1:1")
        self.requests: list[Any] = []
        self._turns = turns
        self._nodes_every = nodes_every

    async def stream(self, method: Any, request: Any, *, timeout_s: float | None) -> AsyncIterator[pb.Report]:
        self.requests.append(request)
        for index, report in enumerate(REPORTS):
            message = to_message(report, pb.Report)
            if index % self._nodes_every:
                message.ClearField("nodes")
                message.is_without_nodes = True
            yield message
            for _ in range(self._turns):
                await asyncio.sleep(0)


async def watched(*, nodes_per_s: int | None, turns: int, nodes_every: int = 1) -> list[Report]:
    stream = Stream(turns, nodes_every=nodes_every)
    client = ControlPlaneClient(cast("ServiceChannel", stream))
    return [report async for report in client.watch_report(nodes_per_s=nodes_per_s)]


def ages_of_nodes(reports: list[Report]) -> list[int]:
    return [
        report.sequence - next(sent.sequence for sent in REPORTS if sent.nodes == report.nodes) for report in reports
    ]


@pytest.mark.parametrize("nodes_per_s", [None, 6])
async def test_reports_of_a_small_fleet_contain_their_own_nodes(nodes_per_s: int | None) -> None:
    assert await watched(nodes_per_s=nodes_per_s, turns=0) == REPORTS


async def test_reports_of_a_large_fleet_share_nodes_until_newer_ones_are_decoded() -> None:
    reports = await watched(nodes_per_s=2, turns=3)

    assert [report.sequence for report in reports] == [report.sequence for report in REPORTS]
    assert ages_of_nodes(reports) == [0, 1, 1, 2, 3, 1, 2, 3]
    assert reports[2].nodes is reports[4].nodes


async def test_reports_without_nodes_have_those_of_an_earlier_report() -> None:
    reports = await watched(nodes_per_s=2, turns=3, nodes_every=3)

    assert [replace(report, nodes=()) for report in reports] == [replace(report, nodes=()) for report in REPORTS]
    assert ages_of_nodes(reports) == [0, 1, 2, 3, 1, 2, 3, 1]


@pytest.mark.parametrize(("nodes_per_s", "requested"), [(None, 0), (2, 2)])
async def test_the_service_is_told_the_rate_of_nodes(nodes_per_s: int | None, requested: int) -> None:
    stream = Stream(0)
    await anext(ControlPlaneClient(cast("ServiceChannel", stream)).watch_report(nodes_per_s=nodes_per_s))

    assert stream.requests == [pb.WatchReportRequest(nodes_per_s=requested)]


async def test_decoding_the_nodes_of_a_large_fleet_delays_no_report() -> None:
    reports = await watched(nodes_per_s=2, turns=0)

    assert [report.sequence for report in reports] == [report.sequence for report in REPORTS]
    assert all(report.nodes is reports[0].nodes for report in reports)
