import doctest
import io
import math
from dataclasses import replace

from rich.console import Console

from astraflow.cli.inspection import screen as module
from astraflow.cli.inspection.run_summary import RunReports
from astraflow.cli.inspection.screen import Screen, progress_lines, summary_table, waiting_line
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Completion, NodeState
from tests import make
from tests.fakes.clock import ManualClock


def written(width: int = 200, *, is_terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=is_terminal, color_system=None), out


def test_doctests_hold() -> None:
    assert doctest.testmod(module).failed == 0


def test_progress_is_one_line_with_the_main_figures() -> None:
    nodes = (make.node_report("node-1.1"), make.node_report("node-2.1", state=NodeState.LOST))
    (line,) = progress_lines(make.report(make.stream_report(steps=12, rewards=(0.5, 0.7)), nodes=nodes))
    assert line == "step 12  reward 0.600  version 12  wait 25%  buffer 3  rollouts 40/s  nodes 1"


def test_each_policy_has_a_progress_line_with_its_name() -> None:
    lines = progress_lines(make.report(make.stream_report(), make.stream_report("verifier")))
    assert [line.split()[0] for line in lines] == ["solver", "verifier"]


def test_failed_rollouts_are_shown_while_there_is_no_step() -> None:
    assert waiting_line(make.report(), "waiting") == "waiting; nodes joined: 1"
    flow = replace(make.flow_report(), episodes={"accepted": 1, "failed_engine": 4, "retried": 8, "late": 2})
    node = replace(make.node_report(), errors=("workflow: old", "engine: cannot answer"))
    line = waiting_line(make.report(flows=(flow,), nodes=(node,)), "waiting")
    assert line == "waiting; nodes joined: 1; rollouts failed: 12, the latest: engine: cannot answer"


def test_failed_rollouts_stay_visible_after_the_first_step_and_in_the_summary() -> None:
    node = replace(make.node_report(), errors=("reward: ValueError: no number (vault.py, line 30)",))
    flow = replace(make.flow_report(), episodes={"accepted": 71, "failed_reward": 20, "retried": 9})
    report = make.report(make.stream_report(steps=3), flows=(flow,), nodes=(node,))

    _, line = progress_lines(report)

    assert line == "rollouts failed: 29%, the latest: reward: ValueError: no number (vault.py, line 30)"
    reports = RunReports([PolicyId("solver")], window_steps=2)
    reports.observe(report)
    console, out = written()
    console.print(summary_table(reports.summary(reason="", has_failed=False, began_at=0, ended_at=9, restarts=0)))
    assert "29%, the latest: reward: ValueError" in out.getvalue()
    few = replace(flow, episodes={"accepted": 1000, "failed_reward": 9})
    assert len(progress_lines(make.report(make.stream_report(), flows=(few,), nodes=(node,)))) == 1


def test_unknown_values_are_not_shown_as_numbers() -> None:
    (line,) = progress_lines(make.report(make.stream_report(wait_fraction=math.nan, reward_produced=math.nan)))
    assert "nan" not in line


def test_without_a_terminal_progress_is_printed_every_five_seconds() -> None:
    console, out = written()
    clock = ManualClock()
    with Screen(console, clock=clock) as screen:
        for step in range(12):
            screen.progress(make.report(make.stream_report(steps=step)))
            clock.advance(1.0)
        screen.print_message("node-1 left")
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 0", "step 5", "step 10", "node-1 left"]


def test_a_terminal_shows_every_change_and_keeps_messages() -> None:
    console, out = written(is_terminal=True)
    with Screen(console) as screen:
        screen.status("starting")
        screen.progress(make.report(make.stream_report(steps=1)))
        screen.print_message("node-1 left")
        screen.progress(make.report(make.stream_report(steps=2)))
    assert all(text in out.getvalue() for text in ("starting", "step 1 ", "step 2 ", "node-1 left"))


def test_the_summary_has_the_result_and_the_main_figures() -> None:
    reports = RunReports([PolicyId("solver")], window_steps=2)
    counters = {"weight_bytes_full": 428_000.0, "weight_updates_full": 2.0, "weight_bytes_delta": 61_000.0}
    node = make.node_report(counters=counters, gauges={"logprob_mismatch_max": 1.2e-5})
    report = make.report(make.stream_report(steps=6, rewards=(0.1, 0.1, 0.1, 0.1, 0.1, 1.0)), nodes=(node,))
    completion = Completion(reason="it did", has_learned=True, at=7.0, ends_run=True)
    reports.observe(replace(report, completion=completion, evaluations=(make.round_report(),)))
    console, out = written()
    console.print(summary_table(reports.summary(reason="it did", has_failed=False, began_at=0, ended_at=9, restarts=1)))
    text = out.getvalue()
    for part in ("learned", "0.100 → 0.550", "428.0 kB in 2 updates", "61.0 kB", "1.20e-05", "balanced", "it did"):
        assert part in text
    assert "avg@4 in evaluation held-out" in text
    assert "0.750 → 0.750, of version 10 → 10" in text
    assert "engine scripted" in text
