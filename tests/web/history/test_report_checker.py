"""Reports with arbitrary values: pages, frames and records continue, and browsers receive only valid JSON."""

import asyncio
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId
from astraflow.contract.reports.report import NodeReport, Report
from tests.fakes.clock import ManualClock
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb
from tests.web.live.test_live import cookie_of, next_message, socket
from web.database.db import open_database
from web.history.recorder import Recorder
from web.history.report_checker import MAX_INT, MAX_TEXT, NODES_PER_TURN, ReportChecker
from web.history.report_json import report_from_json
from web.live.frames import FrameBuilder
from web.live.node_texts import build_node_texts
from web.state.node_table import NodeTable
from web.state.run_state import RunState

pytestmark = pytest.mark.anyio

SKIPPED_ONE = "Reports that could not be shown: 1"

NUMBERS = (math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324, -1.0)
INTEGERS = (2**63 - 1, -(2**63), 2**53 + 1, -1)
TEXTS = ("x" * 100_000, "\0", "‮", "javascript:alert(1)", "")


def strict(text: str) -> Any:
    """Reads JSON as browsers do."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def mutated(value: Any, pick: Callable[[tuple[Any, ...]], Any], is_hit: Callable[[], bool]) -> Any:
    """Returns the value with some of its leaves replaced by hostile ones of the same type."""
    if isinstance(value, bool) or value is None:
        return value
    for kind, choices in ((float, NUMBERS), (int, INTEGERS)):
        if isinstance(value, kind):
            return pick(choices) if is_hit() else value
    if type(value) is str:
        return pick(TEXTS) if is_hit() else value
    if isinstance(value, tuple):
        return tuple(mutated(item, pick, is_hit) for item in value)
    if isinstance(value, Mapping):
        unknown = {"no such counter": pick(NUMBERS)} if value and is_hit() else {}
        return {key: mutated(item, pick, is_hit) for key, item in value.items()} | unknown
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return replace(value, **{name: mutated(getattr(value, name), pick, is_hit) for name in names})
    return value


def with_node(report: Report, **changes: Any) -> Report:
    first, *rest = report.nodes
    return replace(report, nodes=(replace(first, **changes), *rest))


def shown(state: RunState, frames: FrameBuilder, report: Report) -> None:
    """Processes a report as the page does."""
    point = state.update(report)
    strict(frames.frame(report, [point] if point is not None else []))
    strict(frames.snapshot(0))
    for row in NodeTable(report).rows:
        json.dumps(build_node_texts(row, report.at), allow_nan=False)


def frames_of(state: RunState) -> FrameBuilder:
    return FrameBuilder(state, render_regions=lambda report, live_texts: {}, build="test")


@settings(
    max_examples=25,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
async def test_a_report_with_any_values_is_shown_and_recorded_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    every = data.draw(st.integers(1, 40))
    draws = data.draw(st.randoms(use_true_random=False))
    plain = SyntheticRun(policies=("solver", "verifier")).report(150)
    hostile = mutated(plain, draws.choice, lambda: draws.randrange(every) == 0)
    state = RunState(ManualClock())
    try:
        report = ReportChecker().checked(hostile)
    except InvalidInput:
        return  # the report has no valid time or sequence number
    shown(state, frames_of(state), report)
    with closing(open_database(tmp_path_factory.mktemp("web"))) as database:
        recorder = Recorder(database, dataflow="127.0.0.1:1", recipe="reverse", clock=ManualClock())
        recorder.add(report, state.series.after(0)[-1])
        await recorder.flush()
    assert recorder.skipped == 0


def test_a_valid_report_is_returned_unchanged() -> None:
    report = SyntheticRun().report(150)

    assert any(node.links for node in report.nodes)
    assert ReportChecker().checked(report) is report


@pytest.mark.parametrize(
    ("change", "cleaned"),
    [
        ({"fetch_s": math.nan}, {"fetch_s": 0.0}),
        ({"fetch_s": math.inf, "decode_s": -math.inf}, {"fetch_s": 0.0, "decode_s": 0.0}),
        ({"versions": 2**60, "failures": -(2**60)}, {"versions": MAX_INT, "failures": MAX_INT}),
        ({"source": "s" * 100_000}, {"source": "s" * MAX_TEXT}),
        ({"source": "a\0b"}, {"source": "a\N{REPLACEMENT CHARACTER}b"}),
    ],
)
def test_invalid_values_of_a_link_are_replaced(change: dict[str, Any], cleaned: dict[str, Any]) -> None:
    report = SyntheticRun().report(150)
    link = report.nodes[0].links[0]

    checked = ReportChecker().checked(with_node(report, links=(replace(link, **change),)))

    assert checked.nodes[0].links == (replace(link, **cleaned),)


def test_invalid_values_of_nodes_are_dropped_and_valid_ones_kept() -> None:
    report = SyntheticRun().report(150)
    node = report.nodes[0]
    facts = replace(node.facts, price_per_hour=math.nan, name="n" * 100_000)
    counters = {"busy_s": math.inf, "blocked_s": 2.0}
    checked = ReportChecker().checked(with_node(report, facts=facts, counters=counters)).nodes[0]

    assert (checked.facts.price_per_hour, len(checked.facts.name)) == (0.0, MAX_TEXT)
    assert checked.counters == {"blocked_s": 2.0}
    assert checked.facts.pool is node.facts.pool


def test_shared_nodes_are_checked_once_and_stay_shared() -> None:
    report, checker = with_node(SyntheticRun().report(150), joined_at=math.nan), ReportChecker()

    assert checker.checked(report).nodes is checker.checked(replace(report, sequence=151)).nodes


async def test_nodes_that_are_checked_in_pieces_are_equal_and_not_checked_again() -> None:
    node = SyntheticRun().report(150).nodes[0]
    hostile = replace(node, joined_at=math.nan)
    report = replace(SyntheticRun().report(150), nodes=(node,) * NODES_PER_TURN + (hostile, node))
    expected, checker, turns = ReportChecker().checked(report).nodes, ReportChecker(), 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await checker.check_nodes(report.nodes)
    counting.cancel()
    nodes = checker.checked(report).nodes

    assert turns > 0
    assert nodes == expected
    assert nodes[NODES_PER_TURN].joined_at == 0.0
    assert checker.checked(replace(report, sequence=151)).nodes is nodes


class HostileWorld(SyntheticRun):
    """A run with one node whose price is not a number, from its first report on."""

    def report(self, sequence: int, *, is_history: bool = False):  # type: ignore[no-untyped-def] # as in SyntheticRun
        report = super().report(sequence, is_history=is_history)
        node: NodeReport = SyntheticRun().report(sequence).nodes[0]
        hostile = replace(
            node,
            id=NodeId("hostile"),
            facts=replace(node.facts, name="hostile", price_per_hour=math.nan),
            episodes_per_s=math.inf,
            counters={"busy_s": math.nan, "no such counter": 1e308},
        )
        return replace(report, nodes=(*report.nodes, hostile))


@pytest.fixture
def fake() -> FakeControlPlane:
    return FakeControlPlane(HostileWorld(), sequence=150)


async def test_a_node_with_a_nan_price_is_shown_live_and_from_history(web: RunningWeb, fake: FakeControlPlane) -> None:
    cookie = await cookie_of(web)
    async with socket(web, after=150, cookie=cookie, rows="") as connection:
        await fake.advance()
        frame = await next_message(connection)
        rows = await next_message(connection)
    async with web.client() as client:
        client.headers["cookie"] = cookie
        pages = {path: (await client.get(path)).status_code for path in ("/", "/nodes", "/nodes/hostile", "/pools")}
        strict((await client.get("/api/v1/report")).text)
        strict((await client.get("/nodes.json")).text)

    assert (frame["kind"], frame["seq"]) == ("frame", 151)
    assert rows["live_texts"]["node/hostile/rate"][0] == "0"
    assert set(pages.values()) == {200}


async def test_a_report_that_cannot_be_shown_at_all_is_skipped_and_counted_and_the_next_one_is_shown(
    web: RunningWeb, fake: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = await cookie_of(web)
    broken = True

    def frame(self: FrameBuilder, report: Report, points: object) -> str:
        if broken:
            raise ValueError("cannot encode")
        return whole(self, report, points)  # type: ignore[arg-type]  # passes its arguments on

    whole = FrameBuilder.frame
    monkeypatch.setattr(FrameBuilder, "frame", frame)
    async with web.client() as client:
        client.headers["cookie"] = cookie
        await fake.advance()
        for _ in range(600):
            if SKIPPED_ONE in (await client.get("/")).text:
                break
            await asyncio.sleep(0.05)
        broken = False
        async with socket(web, after=151, cookie=cookie) as connection:
            await fake.advance()
            while (message := await next_message(connection))["kind"] != "frame":
                pass
        page = (await client.get("/")).text

    assert message["seq"] == 152
    assert SKIPPED_ONE in page


DAMAGED = '{"streams": [{"policy": 7, "rewards": NaN}], "flows": {"a": 1}}'
"""A report that no release wrote."""


def test_a_damaged_record_is_read_as_far_as_possible() -> None:
    assert report_from_json("[" * 200_000).streams == ()
    assert report_from_json(DAMAGED).flows == ()
