"""Texts of the pages for measured values."""

import dataclasses

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.report import NodeState
from tests import make
from tests.fakes.synthetic_run import SyntheticRun
from web.charts.panels import CHARTS
from web.charts.tables import as_sheet, as_table, rows_of
from web.charts.version_lag import lag_table
from web.components import insights
from web.components.group_counts import episode_entries, flow_balance, partial_rollout_balance, stream_balance
from web.components.live_texts import build_live_texts, visible_nodes
from web.components.rendering import rendered
from web.history.points import Series
from web.trajectories.views import group_samples
from web.weights.views import MAX_LINKS, PHASES, weight_page

SOLVER = PolicyId("solver")


def _plain(text: str) -> str:
    """Replaces narrow no-break spaces before units with ordinary ones."""
    return text.replace("\u202f", " ")


def series_of(synthetic_run: SyntheticRun, until: int) -> Series:
    series = Series()
    for second in range(1, until + 1):
        series.add(synthetic_run.report(second))
    return series


def test_chart_titles_describe_the_shown_range() -> None:
    series = series_of(SyntheticRun(), 150)
    report = SyntheticRun().report(150)
    titles = insights.chart_insights(report.streams[0], series.window(300))

    assert titles["reward"].startswith("Reward rose from 0.3")
    assert "above consumption" in titles["rates"]
    assert titles["wait"].startswith("The trainer waited ")
    assert "full batch was ready" in titles["buffer"]
    assert "version" in titles["versions"]


def test_chart_titles_of_an_empty_history_say_so() -> None:
    report = SyntheticRun().report(1)
    titles = insights.chart_insights(report.streams[0], [])

    assert titles == {
        "reward": "No reward yet",
        "rates": "Nothing produced yet",
        "wait": "No step yet",
        "buffer": "Nothing buffered yet",
        "versions": "No node serves this policy",
    }


def test_every_changing_figure_has_a_live_text() -> None:
    synthetic_run = SyntheticRun(policies=("solver", "verifier"), node_errors={"node-a": ("one", "out of memory")})
    live_texts = build_live_texts(synthetic_run.report(150), series_of(synthetic_run, 150))

    assert live_texts["policy/verifier/steps"].text == "131"
    assert live_texts["policy/solver/reward/15m"].text.startswith("Reward rose")
    assert live_texts["flow/train/state"].text == "issuing"
    assert not any(key.startswith("node/") for key in live_texts), "node rows are sent only to pages that show them"
    assert live_texts["weights/saved"].text.endswith("less")
    assert live_texts["run/nodes"].text == "2 ready"


def test_a_logprob_mismatch_above_the_limit_is_bad() -> None:
    report = SyntheticRun().report(100)
    node = dataclasses.replace(report.nodes[0], gauges={"logprob_mismatch_max": 0.02})
    live_texts = build_live_texts(dataclasses.replace(report, nodes=(node,)), Series())

    assert (live_texts["weights/mismatch"].text, live_texts["weights/mismatch"].tone) == ("2.0e-02 nats", "bad")


def test_lost_nodes_come_last_and_gone_nodes_are_hidden() -> None:
    report = SyntheticRun(nodes=("a", "b", "c")).report(100)
    states = (NodeState.READY, NodeState.GONE, NodeState.LOST)
    nodes = tuple(dataclasses.replace(node, state=state) for node, state in zip(report.nodes, states, strict=True))

    assert [node.facts.name for node in visible_nodes(dataclasses.replace(report, nodes=nodes))] == ["a", "c"]


def test_counts_balance_and_an_unbalanced_one_is_marked() -> None:
    report = SyntheticRun().report(150)
    flow, stream = report.flows[0], report.streams[0]

    assert flow_balance(flow, report.plugin_kinds).is_balanced
    assert stream_balance(stream, report.plugin_kinds).is_balanced
    broken = stream_balance(make.changed_stream(stream, trained=stream.groups.trained - 1), report.plugin_kinds)
    assert not broken.is_balanced
    assert broken.sentence != stream_balance(stream, report.plugin_kinds).sentence
    assert next(entry.label for entry in episode_entries(flow)) == "accepted"
    handed_back = partial_rollout_balance(flow)
    assert handed_back.is_balanced
    assert [(entry.label, entry.count) for entry in handed_back.entries[:3]] == [
        ("handed back", "5"),
        ("stored", "1"),
        ("continued", "3"),
    ]
    assert "1,200 tokens" in handed_back.entries[0].note


def test_the_table_of_versions_begins_with_serving_nodes_that_are_farthest_behind() -> None:
    both, left = SyntheticRun(nodes=("away", "slow", "quick")), SyntheticRun(nodes=("slow", "quick"))
    series = Series()
    for second in range(100, 130):
        series.add((both if second < 110 else left).report(second))
    points = series.window(300)
    heads, body = lag_table(points, SOLVER)

    largest = {name: max(point.lags[SOLVER].get(name, 0) for point in points) for name in ("slow", "quick", "away")}
    assert heads[-1] == "away", "a node that left is last"
    assert [largest[name] for name in heads[1:-1]] == sorted((largest[name] for name in heads[1:-1]), reverse=True)
    assert body[0][-1] == "\N{EN DASH}"


def test_csv_and_table_have_the_plotted_rows() -> None:
    series = series_of(SyntheticRun(), 130)
    rows = rows_of(series.window(120), SOLVER)
    heads, body = as_table(CHARTS["rates"], rows)

    sheet = as_sheet("rates", rows, ("produced",))
    assert len(sheet.rows) == len(rows)
    assert sheet.columns == ("time", "unix_s", "produced")
    assert heads[1:] == ("produced", "consumed")
    assert len(body) <= 61


def test_samples_are_grouped_with_outcome_versions_and_node_names() -> None:
    groups = group_samples(SyntheticRun().samples(150)[:16], {"n0": "node-a", "n1": "node-b"})

    assert [group.id for group in groups] == ["train:49", "train:48"]
    assert len(groups[0].members) == 8
    assert {member.node for member in groups[0].members} == {"node-a", "node-b"}
    step = SyntheticRun().samples(150)[0].step
    assert step is not None
    assert groups[0].outcome.split()[-1] == str(step)
    assert groups[0].members[5].versions.count("\N{MULTIPLICATION SIGN}") == 2


def test_a_group_that_scored_alike_has_no_signal() -> None:
    samples = [dataclasses.replace(sample, reward=1.0) for sample in SyntheticRun().samples(150)[:8]]

    assert not group_samples(samples, {})[0].has_signal


def test_the_weights_page_shows_versions_newest_first_and_the_node_that_is_behind_most_first() -> None:
    nodes = tuple(
        dataclasses.replace(make.node_report(name), links=(make.link_report(),), versions={SOLVER: Version(version)})
        for name, version in (("near.1", 7), ("far.1", 4), ("middle.1", 6))
    )
    report = make.report(make.stream_report(steps=7), nodes=nodes)
    view = weight_page(dataclasses.replace(report, weights=(make.weights_report(5, 6, 7),)))

    assert [(row.node.facts.name, row.lag, row.is_beyond) for row in view.links] == [
        ("far", 3, True),
        ("middle", 1, False),
        ("near", 0, False),
    ]
    ((_, versions),) = view.policies
    assert [int(version.version) for version in versions] == [7, 6, 5]
    tables = _plain(rendered("weights/_tables.html", view=view, phases=PHASES))
    for texts in (["1.1 kB", "20 B", "40 B/s"], ["1.0 kB", "20 B"], ["98 %", "2 %"], ["0.5 s"]):
        cells = [f'<td class="num">{text}</td>' for text in texts]
        assert all(cell in tables for cell in cells), texts


def test_the_number_of_shown_links_is_limited_with_a_note() -> None:
    link = make.link_report()
    nodes = tuple(
        dataclasses.replace(make.node_report(f"n{number}.1"), links=(link,)) for number in range(MAX_LINKS + 3)
    )
    view = weight_page(make.report(nodes=nodes))

    assert (len(view.links), view.omitted_links) == (MAX_LINKS, "3 more links")
    assert weight_page(None).has_report is False
