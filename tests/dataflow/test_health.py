"""Health events in the course of a run."""

from dataclasses import replace
from typing import Any

from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, problem_record, render
from astraflow.contract.reports.report import Report
from astraflow.dataflow.reporting.health import STARVED_S, HealthMonitor
from tests import make


def at(
    second: float, *, problems: tuple[Record, ...] = (), episodes: dict[str, int] | None = None, **stream: Any
) -> Report:
    flow = replace(make.flow_report(), episodes=episodes or {})
    plain = make.report(make.stream_report(**stream), flows=(flow,))
    return replace(plain, uptime_s=second, problems=problems)


def kinds(watch: HealthMonitor, report: Report) -> list[str]:
    return [record.kind.value for record in watch.changes(report)]


def test_a_starved_stream_is_reported_at_its_start_and_end() -> None:
    watch = HealthMonitor()
    assert kinds(watch, at(0, is_waiting=True)) == []
    assert kinds(watch, at(STARVED_S - 1, is_waiting=True)) == []
    (record,) = watch.changes(at(STARVED_S, is_waiting=True, buffered=1))
    assert (record.kind, record.subject) == (RecordKind.STREAM_STARVED, "solver")
    assert (record.values["buffered"], record.values["batch_groups"]) == (1, 4)
    assert kinds(watch, at(STARVED_S + 50, is_waiting=True)) == []
    assert kinds(watch, at(STARVED_S + 60, is_waiting=False)) == ["stream_supplied"]


def test_short_waits_between_steps_are_not_reported() -> None:
    watch = HealthMonitor()
    for second in range(200):
        assert kinds(watch, at(second, is_waiting=True, steps=second)) == []


def test_more_than_one_percent_stale_is_reported_at_its_start_and_end() -> None:
    watch = HealthMonitor()
    assert kinds(watch, at(0, admitted=1000, dropped={"stale": 500})) == []
    assert kinds(watch, at(1, admitted=1199, dropped={"stale": 520})) == []
    assert kinds(watch, at(2, admitted=1200, dropped={"stale": 504})) == ["stale_drops"]
    assert kinds(watch, at(3, admitted=1500, dropped={"stale": 506})) == []
    assert kinds(watch, at(4, admitted=1800, dropped={"stale": 507})) == ["stale_drops_resolved"]


def test_a_flow_with_failing_episodes_is_reported() -> None:
    watch = HealthMonitor()
    assert kinds(watch, at(0, episodes={"accepted": 50})) == []
    assert kinds(watch, at(1, episodes={"accepted": 100, "failed_reward": 30, "retried": 30})) == ["flow_failing"]
    assert kinds(watch, at(2, episodes={"accepted": 300, "failed_reward": 30, "retried": 30})) == ["flow_recovered"]


def test_a_failing_flow_is_reported_with_the_latest_error() -> None:
    watch = HealthMonitor()
    node = replace(make.node_report(), errors=("old", "reward: ValueError: no number (vault.py, line 30)"))
    list(watch.changes(replace(at(0, episodes={"accepted": 50}), nodes=(node,))))
    (record,) = watch.changes(replace(at(1, episodes={"accepted": 100, "failed_reward": 60}), nodes=(node,)))
    assert record.values == {"share": 60 / 110, "error": "reward: ValueError: no number (vault.py, line 30)"}


def test_problems_and_redelivered_batches_are_reported() -> None:
    watch = HealthMonitor()
    assert kinds(watch, at(0)) == []
    full, fuller = (problem_record("journal", "", error=f"disk full, {held} waiting") for held in (3, 4))
    assert list(watch.changes(at(1, problems=(full,)))) == [replace(full, subject="evening")]
    assert kinds(watch, at(2, problems=(fuller,), redelivered=1)) == ["batch_redelivered"], "only its figure changed"
    (resolved,) = watch.changes(at(3, redelivered=1))
    assert (resolved.subject, render(resolved)) == ("evening", "resolved: disk full, 4 waiting")


def test_a_change_of_a_simulated_load_is_reported_when_all_nodes_follow_it() -> None:
    def report(*factors: float) -> Report:
        nodes = [
            make.node_report(f"n{n}.1", gauges={"simulated_reply_length": factor}) for n, factor in enumerate(factors)
        ]
        return replace(at(1), nodes=(*nodes, make.node_report("real.1")))

    watch = HealthMonitor()
    assert kinds(watch, report(1.0, 1.0)) == []
    assert kinds(watch, report(1.4, 1.0)) == []
    (record,) = watch.changes(report(1.4, 1.4))
    assert (record.kind, record.values) == (RecordKind.LOAD_CHANGED, {"factor": 1.4, "before": 1.0})
    assert kinds(watch, report(1.4, 1.4)) == []
