"""The guard: a pure function that checks a proposed change of a pool, the same for every actor.

Its violations depend on numbers, states and the actor's role alone, not on models, prompts or pages.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from astraflow.contract.fleet.instances import Instance, InstanceState, LaunchId
from astraflow.contract.fleet.plans import Actor, GuardRule, Role, Violation
from astraflow.contract.fleet.pools import KillScope, PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from maintainer.fleet.guard.rules import (
    HOUR_S,
    HUMAN_ROLES,
    Limits,
    budget_violations,
    kill_violations,
    rate_violations,
    refused,
    rejection_violations,
    stale_violations,
    unapproved,
)
from maintainer.fleet.ledger.lifecycle import COUNTED_STATES, LIVE_STATES

AUTOMATIC_MODES = (Mode.UP_ONLY, Mode.ON)
"""Modes of pools whose size the rule sets."""
MAX_HOLD_S = 3600.0
"""Maximum duration of a hold. It can be set again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An agent's plan for the pool that a person rejected."""

    at: float
    target: int
    retire: tuple[LaunchId, ...] = ()
    """Named nodes; empty for a plan of the pool's size."""
    victims: tuple[LaunchId, ...] = ()
    """Nodes that the plan would have retired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """State of a pool, as input of the guard."""

    now: float
    spec: PoolSpec
    instances: tuple[Instance, ...]
    """Instances of the pool that are not gone."""
    target: int
    """Target of the last applied plan."""
    rule_target: int | None
    report_age_s: float | None
    """Seconds; None before the first report of dataflow."""
    changed_at: tuple[float, ...]
    """Unix seconds of the latest applied plans, oldest first."""
    cool_down_s: float
    hold_until_at: float | None
    breaker_until: float | None
    kill: KillScope
    usd_per_hour: float
    usd_today: float
    fleet_usd_per_hour: float
    fleet_usd_today: float
    unmanaged: int = 0
    """Nodes of the pool that joined manually. They count towards its size, and no plan retires them."""
    rejected: tuple[Rejection, ...] = ()
    """Rejections within `Limits.rejected_s`."""

    @property
    def size(self) -> int:
        """Present plus requested nodes."""
        return self.unmanaged + sum(1 for instance in self.instances if instance.state in COUNTED_STATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedChange:
    """A change that an actor proposes."""

    actor: Actor
    target: int
    launches: int
    victims: tuple[Instance, ...]
    usd_per_hour_change: float
    is_kill: bool = False
    is_named: bool = False
    """The request names the victims; it does not ask for a size."""


def judge(situation: Situation, proposal: ProposedChange, limits: Limits) -> tuple[Violation, ...]:
    """Returns all violations against a change; empty when it is allowed."""
    return (
        *_switches(situation, proposal),
        *_scope(situation, proposal),
        *_bounds(situation, proposal),
        *_budgets(situation, proposal, limits),
        *_pace(situation, proposal, limits),
        *_rejected(situation, proposal, limits),
        *_retirements(situation, proposal, limits),
        *_reversals(situation, proposal),
        *_distance(situation, proposal, limits),
    )


def is_replacement(situation: Situation, proposal: ProposedChange) -> bool:
    """Returns whether a change only replaces lost nodes, which needs no cool-down."""
    return proposal.launches > 0 and not proposal.victims and proposal.target <= situation.target


def nodes_beyond_rule(situation: Situation, proposal: ProposedChange) -> int:
    """Returns the distance of the target from the size that the rule would restore; 0 where the rule does not act.

    In a pool that follows the rule, any other size does not last.
    """
    spec, rule = situation.spec, situation.rule_target
    if rule is None or proposal.actor.role is Role.RULE or spec.mode not in AUTOMATIC_MODES:
        return 0
    beyond = proposal.target - min(max(rule, spec.min_nodes), spec.max_nodes)
    return beyond if beyond < 0 or spec.mode is Mode.ON else 0  # an up-only pool keeps its nodes


def hold_s(situation: Situation, proposal: ProposedChange, limits: Limits, *, launch_delay_s: float) -> float:
    """Returns the duration of the hold that protects a change from the rule, in seconds; 0 for none.

    launch_delay_s: time until new nodes are ready, from when on the rule can measure their effect.
    """
    if nodes_beyond_rule(situation, proposal) <= 0 or limits.hold_s <= 0:
        return 0.0
    return min(MAX_HOLD_S, limits.hold_s + (launch_delay_s if proposal.launches else 0.0))


def _switches(situation: Situation, proposal: ProposedChange) -> Iterator[Violation]:
    role, mode = proposal.actor.role, situation.spec.mode
    yield from kill_violations(situation.kill, role)
    if role in HUMAN_ROLES:
        return
    if mode is Mode.OFF:
        yield refused(GuardRule.MODE, f"pool {situation.spec.id} is in mode off; only a person can change it")
    is_free = mode is Mode.ON or (mode is Mode.UP_ONLY and not proposal.victims)
    if mode is not Mode.OFF and not is_free:
        yield unapproved(
            GuardRule.MODE, f"pool {situation.spec.id} is in mode {mode.value}; a person must approve this change"
        )


def _scope(situation: Situation, proposal: ProposedChange) -> Iterator[Violation]:
    own = {instance.id for instance in situation.instances if instance.state in LIVE_STATES}
    strangers = [victim.id for victim in proposal.victims if victim.id not in own]
    if strangers:
        yield refused(GuardRule.SCOPE, f"{strangers[0]} is not a live instance of pool {situation.spec.id}")
    if proposal.is_kill and proposal.actor.role is not Role.ADMIN:
        yield refused(GuardRule.KILL, "only an admin can terminate nodes without a drain; plan with a drain")


def _bounds(situation: Situation, proposal: ProposedChange) -> Iterator[Violation]:
    spec = situation.spec
    if (
        proposal.target > spec.max_nodes and proposal.target >= situation.size
    ):  # allowed on the way back into the bounds
        message = f"{proposal.target} nodes exceed the maximum of {spec.max_nodes}"
        yield refused(GuardRule.MAX_NODES, message, target=proposal.target, limit=spec.max_nodes)
    if proposal.target < spec.min_nodes and proposal.target <= situation.size:
        message = f"{proposal.target} nodes are below the minimum of {spec.min_nodes}"
        yield refused(GuardRule.MIN_NODES, message, target=proposal.target, limit=spec.min_nodes)
    if proposal.launches and situation.breaker_until is not None and situation.now < situation.breaker_until:
        left_s = situation.breaker_until - situation.now
        message = f"recent launches failed; the next attempt is in {left_s:.0f} s, or use another pool"
        yield refused(GuardRule.BREAKER, message, left_s=left_s)


def _budgets(situation: Situation, proposal: ProposedChange, limits: Limits) -> Iterator[Violation]:
    if proposal.usd_per_hour_change <= 0:
        return
    spec, change = situation.spec, proposal.usd_per_hour_change
    hour_usd, fleet_hour_usd = situation.usd_per_hour + change, situation.fleet_usd_per_hour + change
    yield from budget_violations(
        hourly=(
            (GuardRule.USD_PER_HOUR, hour_usd, spec.usd_per_hour_max),
            (GuardRule.FLEET_USD_PER_HOUR, fleet_hour_usd, limits.usd_per_hour_max),
        ),
        daily=(
            (GuardRule.USD_PER_DAY, situation.usd_today + hour_usd, spec.usd_per_day_max),
            (GuardRule.FLEET_USD_PER_DAY, situation.fleet_usd_today + fleet_hour_usd, limits.usd_per_day_max),
        ),
    )


def _pace(situation: Situation, proposal: ProposedChange, limits: Limits) -> Iterator[Violation]:
    """Limits the rate of changes: refuses agents, and asks for approval of changes by people.

    The rule is exempt. It has its own limits (scale-ups and scale-downs in ten minutes, launches that count at once)
    and was tested in the simulator with these alone.
    """
    if is_replacement(situation, proposal) or proposal.actor.role is Role.RULE:
        return
    yield from rate_violations(situation.changed_at, proposal.actor, limits, now=situation.now)
    changed_s = situation.now - max(situation.changed_at, default=-math.inf)
    if changed_s < min(situation.cool_down_s, HOUR_S):
        violation = unapproved if proposal.actor.role in HUMAN_ROLES else refused
        left_s = situation.cool_down_s - changed_s
        message = f"the last change has not taken effect yet; retry in {left_s:.0f} s"
        yield violation(GuardRule.COOL_DOWN, message, left_s=left_s, cool_down_s=situation.cool_down_s)


def _rejected(situation: Situation, proposal: ProposedChange, limits: Limits) -> Iterator[Violation]:
    """Refuses agents a change that a person has rejected, or a larger one. The rule is not affected."""
    if proposal.actor.role is not Role.AGENT or is_replacement(situation, proposal):
        return
    repeated = (item.at for item in situation.rejected if _repeats_rejected(situation, proposal, item))
    yield from rejection_violations(repeated, limits, now=situation.now)


def _repeats_rejected(situation: Situation, proposal: ProposedChange, rejection: Rejection) -> bool:
    """Returns whether a change equals the rejected one, or goes further in the same direction."""
    if rejection.retire or proposal.is_named:
        return _repeats_rejected_retirement(proposal, rejection)
    if proposal.target == rejection.target:
        return True
    if rejection.target > situation.size:
        return proposal.target > rejection.target
    return rejection.target < situation.size and proposal.target < rejection.target


def _repeats_rejected_retirement(proposal: ProposedChange, rejection: Rejection) -> bool:
    """Returns whether a retirement repeats a rejected one, where at least one of them names its nodes.

    Otherwise a rejected size could be reached by naming nodes, and named nodes retired by asking for a size. Of two
    that name nodes, the later one may name others.
    """
    victims = {victim.id for victim in proposal.victims}
    rejected_victims = {*rejection.retire, *rejection.victims}
    if not victims or not rejected_victims:
        return False
    is_same_kind = proposal.is_named and bool(rejection.retire)
    return victims >= rejected_victims or (not is_same_kind and proposal.target <= rejection.target)


def _retirements(situation: Situation, proposal: ProposedChange, limits: Limits) -> Iterator[Violation]:
    if not proposal.victims:
        return
    if situation.hold_until_at is not None and situation.now < situation.hold_until_at:
        left_s = situation.hold_until_at - situation.now
        message = f"a hold keeps all nodes for another {left_s:.0f} s"
        yield refused(GuardRule.HOLD, message, left_s=left_s, victims=len(proposal.victims))
    ready = {instance.id for instance in situation.instances if instance.state is InstanceState.READY}
    victims = {victim.id for victim in proposal.victims}
    is_last = bool(ready) and ready <= victims
    if is_last and not proposal.is_kill:
        yield refused(GuardRule.LAST_READY, "the change would retire the last ready node", ready=len(ready))
    if proposal.actor.role not in HUMAN_ROLES:
        yield from stale_violations("no node is retired", situation.report_age_s, limits)


def _reversals(situation: Situation, proposal: ProposedChange) -> Iterator[Violation]:
    """Refuses programs a size below the rule's target, because the rule would order the nodes again."""
    is_size = bool(proposal.victims) and not proposal.is_named
    if not is_size or proposal.actor.role in HUMAN_ROLES or nodes_beyond_rule(situation, proposal) >= 0:
        return
    rule = situation.rule_target or 0
    message = (
        f"the rule's target is {rule} nodes, so the rule would order them again; name the nodes to retire, or ask a "
        "person to set the pool's bounds or mode"
    )
    yield refused(GuardRule.UNDONE, message, target=proposal.target, rule_target=rule)


def _distance(situation: Situation, proposal: ProposedChange, limits: Limits) -> Iterator[Violation]:
    if is_replacement(situation, proposal):
        return
    rule = situation.rule_target if situation.rule_target is not None else situation.size
    limit = max(limits.unapproved_nodes, limits.unapproved_share * rule)
    if abs(proposal.target - rule) > limit:
        reference = "the rule's target of" if situation.rule_target is not None else "the current size of"
        message = (
            f"a target of {proposal.target} differs by more than {limit:g} nodes from {reference} {rule}; "
            "a person must approve it"
        )
        yield unapproved(GuardRule.DISTANCE, message, target=proposal.target, rule_target=rule, limit=limit)
