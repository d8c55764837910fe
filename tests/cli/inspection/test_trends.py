"""Course of a run in the terminal."""

import doctest
import math
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from astraflow.cli.inspection import trends as module
from astraflow.cli.inspection.trends import CELLS, Trend, read_trends, sparkline, trend_table
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.training_steps import TrainingStepQuery
from astraflow.wire.channel import dial
from tests.fakes.control_plane import TOKEN, FakeControlPlane


@pytest.fixture
async def client() -> AsyncIterator[ControlPlaneClient]:
    fake = FakeControlPlane(sequence=120)
    async with fake.serving() as address, dial(address, token=TOKEN) as link:
        yield ControlPlaneClient(link)


def test_doctests_hold() -> None:
    assert doctest.testmod(module).failed == 0


def test_a_constant_or_unknown_value_is_a_line_without_a_rise() -> None:
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([math.nan, math.nan]) == "  "
    assert sparkline([]) == ""


@pytest.mark.anyio
async def test_a_long_run_is_read_at_a_few_points_from_its_first_step_on(client: ControlPlaneClient) -> None:
    report = await client.report()
    stream = report.streams[0]
    assert stream.training.steps > CELLS
    trends = {trend.name: trend for trend in await read_trends(client, report)}
    reward = trends[f"reward of {stream.policy}"]
    first = (await client.training_steps(TrainingStepQuery(policy=PolicyId(stream.policy), limit=1))).steps[0]
    assert len(reward.values) == CELLS
    assert reward.values[0] == pytest.approx(first.reward, abs=0.1)
    assert len(trends[f"trained tokens/s of {stream.policy}"].values) == CELLS - 1
    assert all(0 <= share <= 1 for share in trends[f"trainer wait of {stream.policy}"].values)
    mismatch = trends[f"divergence of {stream.policy}"]
    assert all(0 < value < 1e-3 for value in mismatch.values)
    assert mismatch.text(4.2e-5) == "4.2e-05"
    assert trends[f"centering against policy term of {stream.policy}"].text(0.02) == "2%"
    scores = [trend for name, trend in trends.items() if name.endswith(" in held-out")]
    assert len(scores) == 1
    assert len(scores[0].values) > 1


def test_a_trend_needs_two_points() -> None:
    table = trend_table(
        [Trend(name="reward", values=(0.25, 1.0), text=str), Trend(name="wait", values=(0.5,), text=str)]
    )
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    assert [line.split() for line in captured.get().splitlines()[1:]] == [["reward", "▁█", "0.25", "1.0"]]
