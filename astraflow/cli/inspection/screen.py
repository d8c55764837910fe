"""Terminal output of a run: a live status line, or periodic plain lines, and the summary."""

import math
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from astraflow.cli.inspection.run_summary import Summary, failed_share, latest_error, returned_rollouts
from astraflow.cli.output import Table
from astraflow.contract.reports.report import NodeState, Report, StreamReport
from astraflow.runtime.clock import Clock, SystemClock

_SHOWN_FAILURES = 0.01
"""Share of failed rollouts from which they are shown: they bias what is trained."""

PLAIN_EVERY_S = 5.0
"""Seconds between progress lines when the output is not a terminal."""


class Screen:
    """Context manager with messages above and the state of the run below."""

    def __init__(self, console: Console, *, clock: Clock | None = None) -> None:
        self._console = console
        self._clock = clock or SystemClock()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._plain_due_at = self._clock.now()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._live:
            self._live.stop()

    def print_message(self, message: str, *, style: str = "") -> None:
        """Prints a permanent line."""
        self._console.print(Text(message, style=style), soft_wrap=True)

    def status(self, message: str) -> None:
        """Shows the current activity before the first figures."""
        self._show(Text(message, style="dim"), lambda: message)

    def progress(self, report: Report) -> None:
        """Shows the current figures."""
        lines = progress_lines(report)
        self._show(Text("\n").join(Text(line) for line in lines), lambda: "\n".join(lines))

    def _show(self, live: Text, plain: Callable[[], str]) -> None:
        if self._live:
            self._live.update(live, refresh=True)
        elif self._clock.now() >= self._plain_due_at:
            self._plain_due_at = self._clock.now() + PLAIN_EVERY_S
            self._console.print(Text(plain()), soft_wrap=True)


def waiting_line(report: Report, activity: str) -> str:
    """Returns the line before the first step: with the failed rollouts and their latest error, since a run in which
    all rollouts fail never makes a step."""
    line = f"{activity}; nodes joined: {len(report.nodes)}"
    failed, _ = returned_rollouts(report)
    if not failed:
        return line
    error = latest_error(report)
    return f"{line}; rollouts failed: {failed}{f', the latest: {error}' if error else ''}"


def progress_lines(report: Report) -> list[str]:
    """Returns a line for each policy, with its name only if there are several, and one about failed rollouts."""
    nodes = sum(node.state in (NodeState.READY, NodeState.DRAINING) for node in report.nodes)
    rollouts_per_s = sum(node.episodes_per_s for node in report.nodes)
    tail = f"rollouts {rollouts_per_s:.0f}/s  nodes {nodes}"
    several = len(report.streams) > 1
    lines = [f"{stream.policy + '  ' if several else ''}{_figures(stream)}  {tail}" for stream in report.streams]
    failures = _failures(failed_share(report), latest_error(report))
    return [*lines, f"rollouts failed: {failures}"] if failures else lines


def summary_table(summary: Summary) -> Table:
    table = Table("learned" if summary.learned else "not learned", "")
    for policy in summary.policies:
        value, first, last = "reward", policy.reward_first, policy.reward_last
        if policy.loss_first is not None:
            value, first, last = "loss", policy.loss_first, policy.loss_last
        table.add(f"{value} of {policy.policy}, first → last", f"{number(first)} → {number(last)}")
        table.add("steps", f"{policy.steps}")
        table.add("trainer wait", share(policy.wait_fraction))
    for held in summary.evaluations:
        versions = f"of version {held.first_version} → {held.last_version}"
        table.add(
            f"{held.score} in evaluation {held.evaluation}", f"{number(held.first)} → {number(held.last)}, {versions}"
        )
    table.add("seconds, of which training", f"{summary.seconds:.1f}, {summary.seconds_training:.1f}")
    full, delta = summary.weight_bytes_full, summary.weight_bytes_delta
    table.add("weights fetched in full", f"{size(full)} in {summary.weight_updates_full} updates")
    table.add("weights fetched as deltas", f"{size(delta)} in {summary.weight_updates_delta} updates")
    shared = f"{size(summary.weight_bytes_shared)} in {summary.weight_updates_shared} updates"
    table.add("weights mapped, same host", shared)
    mismatch = summary.logprob_mismatch_max
    table.add("largest logprob mismatch", "not measured" if mismatch is None else f"{mismatch:.2e}")
    table.add("restarts", str(summary.restarts))
    if failures := _failures(summary.rollouts_failed, summary.latest_error):
        table.add("rollouts failed", failures)
    table.add("group counts", "balanced" if summary.balanced else "; ".join(summary.imbalances))
    if summary.simulated:
        table.add("simulated", ", ".join(summary.simulated))
    table.add("end", "a process failed, see below" if summary.failed else summary.reason)
    return table


def size(count: float) -> str:
    """Returns a number of bytes with a unit.

    >>> size(1_234_567)
    '1.2 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(value: float | None) -> str:
    """Returns a number with three decimals; a dash if unknown."""
    return "—" if value is None or math.isnan(value) else f"{value:.3f}"


def share(value: float) -> str:
    """Returns a fraction in per cent; a dash if unknown."""
    return "—" if math.isnan(value) else f"{value:.0%}"


def _failures(failed: float, error: str) -> str:
    """Returns the share of failed rollouts with the latest error; empty for few."""
    if failed < _SHOWN_FAILURES:
        return ""
    return f"{share(failed)}, the latest: {error}" if error else share(failed)


def _figures(stream: StreamReport) -> str:
    training = stream.training
    recent = (training.losses or training.rewards)[-10:]
    value = sum(recent) / len(recent) if recent else stream.reward_produced
    name = "loss" if training.losses else "reward"
    return (
        f"step {training.steps}  {name} {number(value)}  version {stream.version}  "
        f"wait {share(training.wait_fraction)}  buffer {stream.groups.buffered}"
    )
