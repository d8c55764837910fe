"""What may be done to a pool: a pure function of what is known and what is proposed, the same for whoever asks.

It knows nothing of models, prompts or pages; what it finds depends on numbers, states and the actor's role alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import (
    Actor,
    Finding,
    Instance,
    InstanceState,
    KillScope,
    LaunchId,
    PoolSpec,
    Role,
    Verdict,
)
from maintainer.fleet.lifecycle import ALIVE, COUNTED

PEOPLE = (Role.OPERATOR, Role.ADMIN)
FOLLOWING = (Mode.UP_ONLY, Mode.ON)
"""Modes of pools whose size the rule sets by itself."""
HOUR_S = 3600.0
LONGEST_HOLD_S = 3600.0
"""Whoever wants more asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The envelope."""

    envelope_nodes: int = 2
    """A target may differ from the rule's by so many nodes,"""
    envelope_share: float = 0.25
    """or by this share of it, whichever is more."""
    changes_per_hour: int = 4
    """Applied plans of one pool within an hour."""
    stale_after_s: float = 90.0
    """An older report is no ground for taking a node away."""
    hold_s: float = 600.0
    """A pool that got more nodes than the rule wants is held for so long after they can work."""
    rejected_s: float = 3600.0
    """For so long agents are refused what a person rejected."""
    usd_per_hour_max: float | None = None
    """Of all pools together."""
    usd_per_day_max: float | None = None
    """Of all pools together, of a day in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An agent's plan for the pool that a person said no to."""

    at: float
    target: int
    retire: tuple[LaunchId, ...] = ()
    """The nodes that it named; empty for one that was about the pool's size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that the guard knows of a pool."""

    now: float
    spec: PoolSpec
    instances: tuple[Instance, ...]
    """Of the pool, those that are gone left out."""
    target: int
    """By the last plan that was applied."""
    rule_target: int | None
    report_age_s: float | None
    """None while dataflow has not been heard."""
    changed_at: tuple[float, ...]
    """Unix seconds of the latest applied plans, oldest first."""
    cool_down_s: float
    hold_until: float | None
    breaker_until: float | None
    kill: KillScope
    usd_per_hour: float
    usd_today: float
    fleet_usd_per_hour: float
    fleet_usd_today: float
    unmanaged: int = 0
    """Nodes of the pool that joined by hand. They count, and no plan retires them."""
    rejected: tuple[Rejection, ...] = ()
    """Within `Limits.rejected_s`."""

    @property
    def size(self) -> int:
        """Nodes that are there or ordered."""
        return self.unmanaged + sum(1 for instance in self.instances if instance.state in COUNTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What somebody wants to do."""

    actor: Actor
    target: int
    launches: int
    victims: tuple[Instance, ...]
    usd_per_hour_change: float
    is_kill: bool = False
    is_named: bool = False
    """Its victims are named: what is wanted is that these go, not another size."""


def judge(situation: Situation, proposal: Proposal, limits: Limits) -> tuple[Finding, ...]:
    """Everything that speaks against it; empty when nothing does."""
    return (
        *_switches(situation, proposal),
        *_scope(situation, proposal),
        *_bounds(situation, proposal),
        *_budgets(situation, proposal, limits),
        *_pace(situation, proposal, limits),
        *_rejected(situation, proposal, limits),
        *_departures(situation, proposal, limits),
        *_undone(situation, proposal),
        *_envelope(situation, proposal, limits),
    )


def verdict(findings: tuple[Finding, ...]) -> Verdict:
    """The hardest of the findings."""
    found = {finding.verdict for finding in findings}
    return next((hard for hard in (Verdict.REFUSED, Verdict.NEEDS_APPROVAL) if hard in found), Verdict.ALLOWED)


def is_replacement(situation: Situation, proposal: Proposal) -> bool:
    """Whether it only brings back what the pool was to have already: lost nodes wait for no cool-down."""
    return proposal.launches > 0 and not proposal.victims and proposal.target <= situation.target


def beyond_rule(situation: Situation, proposal: Proposal) -> int:
    """Nodes more (fewer: negative) than the rule would make of the pool again at its next look; 0 where it would not.

    Whoever changes a pool that follows the rule has to know: a size that the rule does not want does not last.
    """
    spec, rule = situation.spec, situation.rule_target
    if rule is None or proposal.actor.role is Role.RULE or spec.mode not in FOLLOWING:
        return 0
    beyond = proposal.target - min(max(rule, spec.min_nodes), spec.max_nodes)
    return beyond if beyond < 0 or spec.mode is Mode.ON else 0  # a pool that may only grow keeps what it has


def hold_s(situation: Situation, proposal: Proposal, limits: Limits, *, launch_delay_s: float) -> float:
    """For how long a change has its pool held, so that the rule does not take away what it brings; 0 for not at all.

    launch_delay_s: until what is launched works; only from then on can the rule see what it does.
    """
    if beyond_rule(situation, proposal) <= 0 or limits.hold_s <= 0:
        return 0.0
    return min(LONGEST_HOLD_S, limits.hold_s + (launch_delay_s if proposal.launches else 0.0))


def _switches(situation: Situation, proposal: Proposal) -> Iterator[Finding]:
    role, mode = proposal.actor.role, situation.spec.mode
    if situation.kill is KillScope.ALL:
        yield refused("kill_switch", "the kill switch is on for everybody: an admin turns it off")
    if situation.kill is KillScope.AGENTS and role is Role.AGENT:
        yield refused("kill_switch", "the kill switch is on for agents: do not try again until a person turns it off")
    if role in PEOPLE:
        return
    if mode is Mode.OFF:
        yield refused("mode", f"pool {situation.spec.id} is off: only people change it")
    is_free = mode is Mode.ON or (mode is Mode.UP_ONLY and not proposal.victims)
    if mode is not Mode.OFF and not is_free:
        yield unapproved("mode", f"pool {situation.spec.id} is in mode {mode.value}: a person approves this")


def _scope(situation: Situation, proposal: Proposal) -> Iterator[Finding]:
    own = {instance.id for instance in situation.instances if instance.state in ALIVE}
    strangers = [victim.id for victim in proposal.victims if victim.id not in own]
    if strangers:
        yield refused("scope", f"{strangers[0]} is no living instance of pool {situation.spec.id}")
    if proposal.is_kill and proposal.actor.role is not Role.ADMIN:
        yield refused("kill", "ending nodes without a drain is for admins: plan without it")


def _bounds(situation: Situation, proposal: Proposal) -> Iterator[Finding]:
    spec = situation.spec
    if proposal.target > spec.max_nodes and proposal.target >= situation.size:  # on the way back in it may pass
        message = f"{proposal.target} nodes are more than the {spec.max_nodes} allowed"
        yield refused("max_nodes", message, target=proposal.target, limit=spec.max_nodes)
    if proposal.target < spec.min_nodes and proposal.target <= situation.size:
        message = f"{proposal.target} nodes are fewer than the {spec.min_nodes} that are to stay"
        yield refused("min_nodes", message, target=proposal.target, limit=spec.min_nodes)
    if proposal.launches and situation.breaker_until is not None and situation.now < situation.breaker_until:
        left_s = situation.breaker_until - situation.now
        message = f"launches failed lately: the next is tried in {left_s:.0f} s, or in another pool"
        yield refused("breaker", message, left_s=left_s)


def _budgets(situation: Situation, proposal: Proposal, limits: Limits) -> Iterator[Finding]:
    if proposal.usd_per_hour_change <= 0:
        return
    spec, change = situation.spec, proposal.usd_per_hour_change
    rates = (
        ("usd_per_hour", situation.usd_per_hour + change, spec.usd_per_hour_max),
        ("fleet_usd_per_hour", situation.fleet_usd_per_hour + change, limits.usd_per_hour_max),
    )
    for code, usd, most in rates:
        if most is not None and usd > most + 1e-9:
            message = f"it would cost {usd:.2f} $/h, and {most:.2f} are allowed"
            yield refused(code, message, usd_per_hour=usd, limit=most)
    # What a day may cost is bound by what it has cost and what the next hour would.
    days = (
        ("usd_per_day", situation.usd_today + situation.usd_per_hour + change, spec.usd_per_day_max),
        (
            "fleet_usd_per_day",
            situation.fleet_usd_today + situation.fleet_usd_per_hour + change,
            limits.usd_per_day_max,
        ),
    )
    for code, usd, most in days:
        if most is not None and usd > most + 1e-9:
            message = f"with the next hour today would cost {usd:.2f} $, and {most:.2f} are allowed"
            yield refused(code, message, usd=usd, limit=most)


def _pace(situation: Situation, proposal: Proposal, limits: Limits) -> Iterator[Finding]:
    """People may be in a hurry, and an admin agrees; programs wait.

    The rule has a pace of its own (orders and retirements in ten minutes, launches that count at once), and is tried in
    the simulator as it is: another one on top would keep it from what it was measured to do.
    """
    if is_replacement(situation, proposal) or proposal.actor.role is Role.RULE:
        return
    found = unapproved if proposal.actor.role in PEOPLE else refused
    lately = [at for at in situation.changed_at if situation.now - at < HOUR_S]
    if len(lately) >= limits.changes_per_hour:
        left_s = HOUR_S - (situation.now - lately[-limits.changes_per_hour])
        message = f"{len(lately)} plans were applied within the hour: the next may in {left_s:.0f} s"
        yield found("rate", message, applied=len(lately), limit=limits.changes_per_hour, left_s=left_s)
    if lately and situation.now - lately[-1] < situation.cool_down_s:
        left_s = situation.cool_down_s - (situation.now - lately[-1])
        message = f"the last change has not taken effect yet: wait {left_s:.0f} s"
        yield found("cool_down", message, left_s=left_s, cool_down_s=situation.cool_down_s)


def _rejected(situation: Situation, proposal: Proposal, limits: Limits) -> Iterator[Finding]:
    """A person has said no: an agent that asks again, for as much or more, looks for a way around them.

    The rule goes on: it was not asked.
    """
    if proposal.actor.role is not Role.AGENT or is_replacement(situation, proposal):
        return
    found = [
        one
        for one in situation.rejected
        if situation.now - one.at < limits.rejected_s and _is_again(situation, proposal, one)
    ]
    if found:
        left_s = limits.rejected_s - (situation.now - max(one.at for one in found))
        message = f"a person rejected this: not again for {left_s:.0f} s, unless people do it themselves"
        yield refused("rejected", message, left_s=left_s)


def _is_again(situation: Situation, proposal: Proposal, rejection: Rejection) -> bool:
    """Whether it is what was rejected, or goes further the same way."""
    if rejection.retire or proposal.is_named:
        victims = {victim.id for victim in proposal.victims}
        return proposal.is_named and bool(rejection.retire) and victims >= set(rejection.retire)
    if proposal.target == rejection.target:
        return True
    if rejection.target > situation.size:
        return proposal.target > rejection.target
    return rejection.target < situation.size and proposal.target < rejection.target


def _departures(situation: Situation, proposal: Proposal, limits: Limits) -> Iterator[Finding]:
    if not proposal.victims:
        return
    if situation.hold_until is not None and situation.now < situation.hold_until:
        left_s = situation.hold_until - situation.now
        message = f"no node is taken away for another {left_s:.0f} s: somebody holds the pool"
        yield refused("hold", message, left_s=left_s, victims=len(proposal.victims))
    ready = {instance.id for instance in situation.instances if instance.state is InstanceState.READY}
    leaving = {victim.id for victim in proposal.victims}
    is_last = bool(ready) and ready <= leaving
    if is_last and not proposal.is_kill:
        yield refused("last_ready", "it would take the last node that works", ready=len(ready))
    age_s = situation.report_age_s
    if proposal.actor.role not in PEOPLE and (age_s is None or age_s > limits.stale_after_s):
        heard = "nothing was heard" if age_s is None else f"the last report is {age_s:.0f} s old"
        numbers = {} if age_s is None else {"report_age_s": age_s, "limit": limits.stale_after_s}
        yield refused("stale", f"no node goes while dataflow is not heard ({heard})", **numbers)


def _undone(situation: Situation, proposal: Proposal) -> Iterator[Finding]:
    """A program that takes away what the rule orders again pays for both, and helps nobody; people may have reasons."""
    is_size = bool(proposal.victims) and not proposal.is_named
    if not is_size or proposal.actor.role in PEOPLE or beyond_rule(situation, proposal) >= 0:
        return
    rule = situation.rule_target or 0
    message = (
        f"the rule wants {rule} nodes and would order them again: name the nodes that are to go, or have a person set "
        "the pool's bounds or mode"
    )
    yield refused("undone", message, target=proposal.target, rule_target=rule)


def _envelope(situation: Situation, proposal: Proposal, limits: Limits) -> Iterator[Finding]:
    if is_replacement(situation, proposal):
        return
    rule = situation.rule_target if situation.rule_target is not None else situation.size
    room = max(limits.envelope_nodes, limits.envelope_share * rule)
    if abs(proposal.target - rule) > room:
        whose = "the rule's" if situation.rule_target is not None else "today's size (the rule says nothing) of"
        message = f"a target of {proposal.target} is more than {room:g} nodes from {whose} {rule}: a person approves it"
        yield unapproved("envelope", message, target=proposal.target, rule_target=rule, limit=room)


def refused(code: str, message: str, **numbers: float) -> Finding:
    """It may not be done."""
    return Finding(code=code, verdict=Verdict.REFUSED, message=message, numbers=_rounded(numbers))


def unapproved(code: str, message: str, **numbers: float) -> Finding:
    """A person has to agree."""
    return Finding(code=code, verdict=Verdict.NEEDS_APPROVAL, message=message, numbers=_rounded(numbers))


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    """As people read them: to a thousandth."""
    return {name: round(float(value), 3) for name, value in numbers.items()}
