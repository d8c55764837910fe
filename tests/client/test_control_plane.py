"""Watched reports: those of a large fleet share nodes that are decoded beside them."""

import asyncio
from collections.abc import AsyncIterator
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
    """Connection that sends the reports, and lets other tasks run this often between two of them."""

    def __init__(self, turns: int) -> None:
        self.channel = grpc.aio.insecure_channel("127.0.0.1:1")
        self._turns = turns

    async def stream(self, method: Any, request: Any, *, timeout_s: float | None) -> AsyncIterator[pb.Report]:
        for report in REPORTS:
            yield to_message(report, pb.Report)
            for _ in range(self._turns):
                await asyncio.sleep(0)


async def watched(*, nodes_per_s: int | None, turns: int) -> list[Report]:
    client = ControlPlaneClient(cast("ServiceChannel", Stream(turns)))
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


async def test_decoding_the_nodes_of_a_large_fleet_delays_no_report() -> None:
    reports = await watched(nodes_per_s=2, turns=0)

    assert [report.sequence for report in reports] == [report.sequence for report in REPORTS]
    assert all(report.nodes is reports[0].nodes for report in reports)
