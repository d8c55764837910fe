"""Fleet data in the terminal."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from astraflow.cli.output import Table
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import Instance, InstanceState
from astraflow.contract.fleet.plans import AppliedPlan, Plan, Verdict
from astraflow.contract.fleet.pools import FleetStatus, KillScope, Pool
from astraflow.contract.fleet.preflight import PreflightCheck, PreflightResult, ProviderFacts
from astraflow.contract.records import render, render_summary

_VERDICTS = {Verdict.ALLOWED: "green", Verdict.NEEDS_APPROVAL: "yellow", Verdict.REFUSED: "red"}
_PENDING = (InstanceState.INTENDED, InstanceState.PENDING, InstanceState.RUNNING)


def status_table(status: FleetStatus) -> RenderableType:
    """Returns the pools as a table below the state of the whole fleet."""
    figures = ("ready", "starting", "target", "bounds", "recommended", "$/h", "$ today", "launch time")
    table = Table("pool", "mode", *figures, "", right=figures)
    for pool in status.pools:
        table.add(*_pool_row(pool, now=status.at))
    lines: list[RenderableType] = [
        Text(f"{status.cluster}: {status.usd_per_hour:.2f} $/h, {status.usd_today:.2f} $ today")
    ]
    if status.kill is not KillScope.NONE:
        lines.append(Text(f"The kill switch is on for {status.kill.value}: {status.kill_reason}", style="red"))
    if status.orphans:
        lines.append(Text(f"{status.orphans} orphaned instances", style="red"))
    lines += [Text(render(problem), style="yellow") for problem in status.problems]
    return Group(*lines, table)


def plan_table(plan: Plan, *, is_proposed: bool = False) -> RenderableType:
    """Returns the effect of a plan and the command to apply it. is_proposed: True omits the command."""
    change, request = plan.usd_per_hour_change, plan.request
    sizes = [
        Text(f"{request.pool}: {plan.nodes} to {plan.target} nodes in about {plan.eta_s:.0f} s", style="bold"),
        Text(f"{plan.launches} to launch, {len(plan.victims)} to {'terminate' if request.is_kill else 'drain'}"),
    ]
    lines = [
        *(sizes if request.run is None else [Text(request.run.sentence, style="bold")]),
        Text(f"{change:+.2f} $/h"),
        *_hold_line(plan),
        *(Text(f"  removes {victim}") for victim in plan.victims),
        *(
            Text(f"{finding.code.value}: {finding.message}", style=_VERDICTS[finding.verdict])
            for finding in plan.findings
        ),
        Text(plan.verdict.value.replace("_", " "), style=_VERDICTS[plan.verdict]),
    ]
    if plan.verdict is not Verdict.REFUSED and not is_proposed:
        lines.append(Text(f"astraflow fleet apply {plan.id}"))
    return Group(*lines)


def _hold_line(plan: Plan) -> tuple[Text, ...]:
    """Returns a line about the hold that keeps the rule from removing nodes again."""
    if not plan.hold_s:
        return ()
    minutes = f"{plan.hold_s / 60:.0f}"
    return (Text(f"recommended: {plan.rule_target}; hold: no node is removed for {minutes} minutes"),)


def applied_line(applied: AppliedPlan) -> RenderableType:
    return Text(f"{applied.message or 'no change was needed'} (decision {applied.decision})")


def decision_line(decision: Decision) -> RenderableType:
    return Text(f"{render_summary(decision)} (decision {decision.ordinal})")


def instance_table(instances: Sequence[Instance]) -> RenderableType:
    titles = ("instance", "pool", "state", "requested", "by", "ready after", "$/h", "message")
    table = Table(*titles, right=("ready after", "$/h"))
    for instance in instances:
        ready = "" if instance.ready_at is None else f"{instance.ready_at - instance.intended_at:.0f} s"
        state = instance.state.value if instance.cause is None else f"{instance.state.value} ({instance.cause.value})"
        cells = (instance.id, instance.pool, state, _time_text(instance.intended_at), instance.actor, ready)
        table.add(*cells, f"{instance.usd_per_hour:.2f}", instance.message or instance.reason)
    return table if instances else Text("no instances")


def decision_table(decisions: Sequence[Decision]) -> RenderableType:
    table = Table("", "time", "kind", "pool", "actor", "decision", "reason", wrapped=("decision", "reason"))
    for decision in decisions:
        table.add(
            str(decision.ordinal),
            _time_text(decision.at),
            decision.kind.value,
            decision.subject,
            decision.actor,
            render_summary(decision),
            decision.reason,
        )
    return table if decisions else Text("no decisions")


def provider_table(providers: Sequence[ProviderFacts]) -> RenderableType:
    table = Table("provider", "kind", "pools", "latest preflight check", "")
    for provider in providers:
        simulated = f"simulated: {', '.join(provider.simulated)}" if provider.simulated else ""
        last = Text("not checked") if provider.last_preflight is None else _outcome(provider.last_preflight)
        table.add(provider.name, provider.kind, ", ".join(provider.pools) or "none", last, simulated)
    return table


def preflight_table(result: PreflightResult) -> RenderableType:
    """Returns the result of each preflight check of a provider."""
    lines = [_check_line(check) for check in result.checks]
    return Group(Text(result.provider, style="bold"), *lines, _outcome(result))


def _check_line(check: PreflightCheck) -> Text:
    pool_text = f" for {check.pool}" if check.pool else ""
    line = Text("  ")
    line.append("ok    " if check.is_ok else "failed", style="green" if check.is_ok else "red")
    line.append(f" {check.kind.value}{pool_text}: {check.message}")
    return line.append(f". {check.remedy}", style="bold") if check.remedy else line


def _outcome(result: PreflightResult) -> Text:
    failed, total = sum(1 for check in result.checks if not check.is_ok), len(result.checks)
    text = f"{failed} of {total} checks failed" if failed else f"all {total} checks passed"
    when = f", {_time_text(result.began_at)} by {result.requested_by}"
    return Text(f"{text}{when}", style="red" if failed else "green")


def _pool_row(pool: Pool, *, now: float) -> tuple[str, ...]:
    notes = [
        *([f"hold, {pool.hold_until_at - now:.0f} s: {pool.hold_reason}"] if pool.hold_until_at else []),
        *([f"launches fail, next attempt in {pool.breaker_until - now:.0f} s"] if pool.breaker_until else []),
        *([f"simulated: {', '.join(pool.simulated)}"] if pool.simulated else []),
    ]
    return (
        pool.spec.id,
        pool.spec.mode.value,
        str(pool.nodes.get(InstanceState.READY, 0)),
        str(sum(pool.nodes.get(state, 0) for state in _PENDING)),
        str(pool.target),
        f"{pool.spec.min_nodes}-{pool.spec.max_nodes}",
        "" if pool.rule_target is None else str(pool.rule_target),
        f"{pool.usd_per_hour:.2f}",
        f"{pool.usd_today:.2f}",
        f"{pool.launch_delay_s:.0f} s",
        "; ".join(notes),
    )


def _time_text(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%m-%d %H:%M:%S}"
