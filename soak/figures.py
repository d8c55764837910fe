"""Results of a soak, as a table and as JSON."""

import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from astraflow.contract.ids import PolicyId
from soak.fault_plan import LONG_S
from soak.results import ACCEPTED
from soak.rules import Invariant
from soak.scenario import Outcome
from soak.topology import DATAFLOW, WEIGHTS, role_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds from a kill to the next step of every policy that needed the process, during kills of other processes."""

    kills: int
    median: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Results of one soak."""

    seed: int
    storm_s: float
    kills: dict[str, int]
    """Kills by role."""
    stops: int
    ends: int
    disturbed: dict[str, int]
    recoveries: dict[str, Recovery]
    """Recoveries by role, `all`, and `alone`: kills without another fault of the processes needed for the next step."""
    steps: dict[str, int]
    groups: int
    """Issued groups."""
    episodes: int
    """Accepted episodes."""
    leased: int
    """Leased tasks, with repeated leases after a loss."""
    duplicates: int
    """Results that were refused because another one was accepted."""
    redelivered: int
    """Batches served more than once."""
    column_tokens: int
    """Tokens of batches that came with a recorded column, whose bytes are part of the comparisons."""
    discarded: int
    """Finished groups that were dropped as stale or because too many members failed."""
    discarded_share: float
    shed: int
    """Shares of groups that other policies trained on, dropped by a stream whose trainer was stopped."""
    broken: dict[str, int]
    """Violations by invariant: all 0 in a successful soak."""
    reports: int
    """Checked reports, all balanced unless stated otherwise."""
    disk_max_mib: float
    rss_max_mib: float
    rss_slope_mib_per_min: float
    """Over the second half of the faults, when bounded state has reached its bound."""

    @property
    def total_kills(self) -> int:
        """Kills of all roles."""
        return sum(self.kills.values())


def figures(outcome: Outcome, *, seed: int) -> Figures:
    """Computes the figures."""
    report, results = outcome.report, outcome.ledger.results
    groups = sum(flow.issued for flow in report.flows) if report else 0
    ended = sum(sum(flow.dropped.values()) + flow.admitted for flow in report.flows) if report else 0
    discarded = _discarded(outcome)
    memory = outcome.watch.memory
    return Figures(
        seed=seed,
        storm_s=outcome.storm_s,
        kills=dict(sorted(Counter(role_of(name) for _, name in outcome.fault_counts.kills).items())),
        stops=sum(outcome.fault_counts.stops.values()),
        ends=sum(outcome.fault_counts.ends.values()),
        disturbed=dict(sorted(outcome.disturbed.items())),
        recoveries=_recoveries(outcome),
        steps={str(policy): steps for policy, steps in outcome.ledger.steps().items()},
        groups=groups,
        episodes=sum(count for outcome, count in _episodes(outcome).items() if outcome == ACCEPTED),
        leased=results.leased,
        duplicates=results.refused,
        redelivered=sum(lineage.redelivered for lineage in outcome.ledger.lineages.values()),
        column_tokens=sum(lineage.column_tokens for lineage in outcome.ledger.lineages.values()),
        discarded=discarded,
        discarded_share=discarded / ended if ended else 0.0,
        shed=sum(stream.groups.dropped.get("full", 0) for stream in report.streams) if report else 0,
        broken=_broken(outcome),
        reports=outcome.watch.reports,
        disk_max_mib=outcome.watch.disk_max_mib,
        rss_max_mib=max((mib for _, mib in memory), default=0.0),
        rss_slope_mib_per_min=_slope(memory[len(memory) // 2 :]) * 60,
    )


def table(run_figures: Figures) -> str:
    """Formats the figures as a table."""
    kills = ", ".join(f"{count} {role}" for role, count in run_figures.kills.items())
    problems = ", ".join(f"{count} {kind}" for kind, count in run_figures.disturbed.items())
    steps = ", ".join(f"{count} {policy}" for policy, count in run_figures.steps.items())
    lines = [
        ("storm", f"{run_figures.storm_s:.0f} s, seed {run_figures.seed}"),
        ("kills", f"{run_figures.total_kills} ({kills})"),
        ("stops, endings", f"{run_figures.stops}, {run_figures.ends}"),
        ("links disturbed", f"{sum(run_figures.disturbed.values())} ({problems})"),
        ("steps", steps),
        ("columns", f"{run_figures.column_tokens} tokens compared"),
        (
            "groups, results",
            f"{run_figures.groups} issued, {run_figures.episodes} counted, {run_figures.leased} tasks handed out",
        ),
        (
            "came too late",
            f"{run_figures.duplicates} results refused as duplicates, {run_figures.redelivered} batches redelivered",
        ),
        (
            "discarded",
            f"{run_figures.discarded} groups, {run_figures.discarded_share:.2%}; {run_figures.shed} shares shed",
        ),
        (
            "dataflow",
            f"{run_figures.rss_max_mib:.0f} MiB at most, {run_figures.rss_slope_mib_per_min:+.2f} MiB a minute",
        ),
        ("its directory", f"{run_figures.disk_max_mib:.0f} MiB at most"),
        ("reports", f"{run_figures.reports} looked at"),
    ]
    lines += [
        (
            f"recovery, {role}",
            f"{recovery.median:.1f} s median, {recovery.p99:.1f} s p99, {recovery.longest:.1f} s longest",
        )
        for role, recovery in run_figures.recoveries.items()
    ]
    lines += [(promise, str(count)) for promise, count in run_figures.broken.items()]
    return "\n".join(f"{name:18}  {value}" for name, value in lines)


def as_json(run_figures: Figures) -> dict[str, object]:
    """Returns the figures as JSON."""
    return {**asdict(run_figures), "total_kills": run_figures.total_kills}


def _discarded(outcome: Outcome) -> int:
    """Counts groups, not shares: a group that is stale for two policies counts once for each stream that dropped it."""
    if outcome.report is None:
        return 0
    stale = sum(stream.groups.dropped.get("stale", 0) for stream in outcome.report.streams)
    return stale + sum(flow.dropped.get("failed", 0) for flow in outcome.report.flows)


def _episodes(outcome: Outcome) -> Counter[str]:
    counts: Counter[str] = Counter()
    for flow in outcome.report.flows if outcome.report else ():
        counts.update(flow.episodes)
    return counts


def _broken(outcome: Outcome) -> dict[str, int]:
    counts = Counter(violation.promise for violation in outcome.violations)
    return {promise.value: counts[promise] for promise in Invariant}


def _recoveries(outcome: Outcome) -> dict[str, Recovery]:
    seconds: dict[str, list[float]] = {}
    for at, name in outcome.fault_counts.kills:
        needing = [PolicyId(name.partition("-")[2])] if role_of(name) == "trainer" else list(outcome.ledger.lineages)
        times = [outcome.ledger.lineages[policy].step_times for policy in needing]
        later = [of_policy[index] for of_policy in times if (index := bisect_right(of_policy, at)) < len(of_policy)]
        if len(later) == len(needing):
            kinds = [role_of(name), "all"] + ["alone"] * _was_alone(outcome, at, until=max(later), policies=needing)
            for kind in kinds:
                seconds.setdefault(kind, []).append(max(later) - at)
    return {kind: _recovery(run_figures) for kind, run_figures in sorted(seconds.items())}


def _was_alone(outcome: Outcome, at: float, *, until: float, policies: Sequence[PolicyId]) -> bool:
    """Returns whether no other fault hit the needed processes, or still lasted, between a kill and the next steps."""
    needed = {DATAFLOW, WEIGHTS, *(f"trainer-{policy}" for policy in policies)}
    kills = [when for when, name in outcome.fault_counts.kills if name in needed and at < when < until]
    lasting = [when for when, name in outcome.lasting if name in needed and at - LONG_S[1] < when < until]
    return not kills and not lasting


def _recovery(seconds: Sequence[float]) -> Recovery:
    ordered = sorted(seconds)
    return Recovery(
        kills=len(ordered),
        median=statistics.median(ordered),
        p99=ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        longest=ordered[-1],
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns the slope by least squares; 0 for fewer than two points."""
    if len({at for at, _ in points}) < 2:
        return 0.0
    return statistics.linear_regression([at for at, _ in points], [value for _, value in points]).slope
