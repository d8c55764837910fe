"""The fleet in the terminal: tables for people, JSON for scripts."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from astraflow.contract.fleet import (
    Applied,
    Decision,
    FleetStatus,
    Instance,
    InstanceState,
    KillScope,
    Plan,
    Pool,
    Verdict,
)
from astraflow.contract.rehearsals import Check, ProviderFacts, Rehearsal

T = TypeVar("T")

_VERDICTS = {Verdict.ALLOWED: "green", Verdict.NEEDS_APPROVAL: "yellow", Verdict.REFUSED: "red"}
_PENDING = (InstanceState.INTENDED, InstanceState.PENDING, InstanceState.RUNNING)


def show(found: T, table: Callable[[T], RenderableType], *, as_json: bool) -> None:
    """Print it, in one way or the other. What others wrote is never taken for markup."""
    console = Console(highlight=False, soft_wrap=as_json)
    if as_json:
        console.out(json.dumps(_plain(found), ensure_ascii=False), highlight=False)
    else:
        console.print(table(found))


def status_table(status: FleetStatus) -> RenderableType:
    """Pools, and above them what concerns all."""
    table = Table("pool", "mode", box=None, pad_edge=False)
    for name in ("ready", "coming", "target", "bounds", "rule", "$/h", "today $", "launch"):
        table.add_column(name, justify="right")
    table.add_column("")
    for pool in status.pools:
        table.add_row(*(Text(text) for text in _pool_cells(pool, now=status.at)))
    lines: list[RenderableType] = [
        Text(f"{status.cluster}: {status.usd_per_hour:.2f} $/h, {status.usd_today:.2f} $ today")
    ]
    if status.kill is not KillScope.NONE:
        lines.append(Text(f"The kill switch is on for {status.kill.value}: {status.kill_reason}", style="red"))
    if status.orphans:
        lines.append(Text(f"{status.orphans} machines that the ledger does not know", style="red"))
    lines += [Text(trouble, style="yellow") for trouble in status.troubles]
    return Group(*lines, table)


def plan_table(plan: Plan, *, is_proposed: bool = False) -> RenderableType:
    """What applying it would do, and how. is_proposed: it is approved, rather than applied."""
    change = plan.usd_per_hour_change
    lines = [
        Text(f"{plan.request.pool}: {plan.nodes} to {plan.target} nodes in about {plan.eta_s:.0f} s", style="bold"),
        Text(f"{plan.launches} launched, {len(plan.victims)} {'ended' if plan.request.is_kill else 'drained'}"),
        Text(f"{change:+.2f} $/h"),
        *_hold_line(plan),
        *(Text(f"  goes: {victim}") for victim in plan.victims),
        *(Text(f"{one.code}: {one.message}", style=_VERDICTS[one.verdict]) for one in plan.findings),
        Text(plan.verdict.value.replace("_", " "), style=_VERDICTS[plan.verdict]),
    ]
    if plan.verdict is not Verdict.REFUSED and not is_proposed:
        lines.append(Text(f"astraflow fleet apply {plan.id}"))
    return Group(*lines)


def _hold_line(plan: Plan) -> tuple[Text, ...]:
    """The rule would take nodes away again."""
    if not plan.hold_s:
        return ()
    return (Text(f"the rule wants {plan.rule_target}: no node is taken away for {plan.hold_s / 60:.0f} minutes"),)


def applied_line(applied: Applied) -> RenderableType:
    """What came of it."""
    return Text(f"{applied.message or 'nothing had to be done'} (decision {applied.decision})")


def decision_line(decision: Decision) -> RenderableType:
    """What was done."""
    return Text(f"{decision.message} (decision {decision.ordinal})")


def instance_table(instances: Sequence[Instance]) -> RenderableType:
    """The ledger."""
    table = Table("machine", "pool", "state", "ordered", "by", box=None, pad_edge=False)
    table.add_column("ready after", justify="right")
    table.add_column("$/h", justify="right")
    table.add_column("what is known")
    for one in instances:
        ready = "" if one.ready_at is None else f"{one.ready_at - one.intended_at:.0f} s"
        state = one.state.value if one.cause is None else f"{one.state.value} ({one.cause.value})"
        cells = (one.id, one.pool, state, _moment(one.intended_at), one.actor, ready)
        table.add_row(*(Text(text) for text in (*cells, f"{one.usd_per_hour:.2f}", one.message or one.reason)))
    return table if instances else Text("no machine")


def decision_table(decisions: Sequence[Decision]) -> RenderableType:
    """The journal."""
    table = Table("", "when", "what", "pool", "who", "decision", "why", box=None, pad_edge=False)
    for one in decisions:
        cells = (str(one.ordinal), _moment(one.at), one.kind, one.pool, one.actor.name, one.message, one.reason)
        table.add_row(*(Text(text) for text in cells))
    return table if decisions else Text("nothing was decided yet")


def provider_table(providers: Sequence[ProviderFacts]) -> RenderableType:
    """Where machines come from."""
    table = Table("provider", "kind", "pools", "latest test", "", box=None, pad_edge=False)
    for one in providers:
        stand_ins = f"stand-ins: {', '.join(one.simulated)}" if one.simulated else ""
        last = Text("not tested yet") if one.last is None else _outcome(one.last)
        table.add_row(Text(one.name), Text(one.kind), Text(", ".join(one.pools) or "none"), last, Text(stand_ins))
    return table


def rehearsal_table(rehearsal: Rehearsal) -> RenderableType:
    """What a provider said to each question."""
    lines = [_check_line(check) for check in rehearsal.checks]
    return Group(Text(rehearsal.provider, style="bold"), *lines, _outcome(rehearsal))


def _check_line(check: Check) -> Text:
    of_pool = f" for {check.pool}" if check.pool else ""
    line = Text("  ")
    line.append("yes" if check.is_ok else "no ", style="green" if check.is_ok else "red")
    line.append(f" {check.kind.value}{of_pool}: {check.message}")
    return line.append(f". {check.to_do}", style="bold") if check.to_do else line


def _outcome(rehearsal: Rehearsal) -> Text:
    failed, of_all = sum(1 for check in rehearsal.checks if not check.is_ok), len(rehearsal.checks)
    text = f"{failed} of {of_all} checks failed" if failed else f"all {of_all} checks passed"
    when = f", {_moment(rehearsal.began_at)} by {rehearsal.by}"
    return Text(f"{text}{when}", style="red" if failed else "green")


def _pool_cells(pool: Pool, *, now: float) -> tuple[str, ...]:
    notes = [
        *([f"held, {pool.hold_until - now:.0f} s: {pool.hold_reason}"] if pool.hold_until else []),
        *([f"launches fail, next try in {pool.breaker_until - now:.0f} s"] if pool.breaker_until else []),
        *([f"stand-ins: {', '.join(pool.simulated)}"] if pool.simulated else []),
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


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%m-%d %H:%M:%S}"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
