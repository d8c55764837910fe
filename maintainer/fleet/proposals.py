"""Plans that wait for a person: put there by agents, approved by applying them, or rejected with a reason."""

from dataclasses import replace

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet import Actor, Decision, Plan, PlanId, Verdict
from astraflow.contract.maintenance import Proposal, ProposalState
from maintainer.fleet.desk import Desk
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.guard import PEOPLE


class Proposals:
    """One for the service."""

    def __init__(self, fleet: Fleet, desk: Desk) -> None:
        self._fleet = fleet
        self._desk = desk

    async def propose(self, plan_id: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Put a plan before people; it is good for longer then. Of the same pool, it takes the place of the last one.

        One that would do the same as one that waits is put before nobody: a person may be reading that, and it is what
        is returned.
        Raises: Conflict for a plan that is not known any more; NotPermitted for one that the guard refuses anyway, or
        that is somebody else's.
        """
        plan = self._desk.plans.known(plan_id)
        if plan is None:
            raise Conflict(f"plan {plan_id} is not known, or not any more: plan again")
        if plan.verdict is Verdict.REFUSED:
            raise NotPermitted("; ".join(finding.message for finding in plan.findings))
        if plan.request.actor != actor:
            raise NotPermitted(f"plan {plan_id} is of {plan.request.actor.name}: only they can propose it")
        equal = self._equal(plan)
        if equal is not None:
            return equal
        await self._propose(plan, actor=actor, key=key, reason=reason)
        return self._fleet.ledger.waiting[plan_id]

    async def reject(self, plan_id: PlanId, *, actor: Actor, key: str, reason: str) -> Decision:
        """Say no: the plan can be applied no more. Raises: InvalidInput when it does not wait, NotPermitted."""
        if actor.role not in PEOPLE:
            raise NotPermitted(f"people reject proposals; {actor.name} has the role {actor.role.value}")
        waiting = self._fleet.ledger.waiting.get(plan_id)
        if waiting is None and await self._fleet.ledger.reply(key) is None:
            raise InvalidInput(f"plan {plan_id} waits for nobody (any more)")
        pool = waiting.plan.request.pool if waiting is not None else None

        def decided() -> tuple[Proposal, ...]:
            found = self._fleet.ledger.waiting.get(plan_id)
            if found is None:
                raise Conflict(f"plan {plan_id} waits for nobody any more: somebody else has decided")
            return (self._decided(found, ProposalState.REJECTED, by=actor.name, reason=reason),)

        decision = await self._desk.noted(
            "reject", f"plan {plan_id} is rejected", actor, key, reason, pool=pool, proposals=decided
        )
        self._desk.plans.drop(plan_id)
        return decision

    async def page(self, *, only_waiting: bool, before: str, limit: int) -> tuple[tuple[Proposal, ...], bool]:
        """Newest first, and whether there are older ones."""
        if not only_waiting:
            found, has_older = await self._fleet.ledger.proposals(before=before, limit=limit)
            return tuple(self.now(proposal) for proposal in found), has_older
        waiting = [self.now(one) for one in self._fleet.ledger.waiting.values() if not before or one.plan.id < before]
        open_ones = sorted(
            (one for one in waiting if one.state is ProposalState.WAITING), key=lambda one: one.plan.id, reverse=True
        )
        return tuple(open_ones[:limit]), len(open_ones) > limit

    def now(self, proposal: Proposal) -> Proposal:
        """As it stands: time and the pool go on while it waits."""
        if proposal.state is not ProposalState.WAITING:
            return proposal
        plan = proposal.plan
        if self._desk.plans.known(plan.id) is None:
            return replace(proposal, state=ProposalState.EXPIRED, decided_at=plan.expires_at)
        pool = self._fleet.ledger.pools.get(plan.request.pool)
        if pool is None or pool.version != plan.observed_version:
            return replace(proposal, state=ProposalState.OVERTAKEN)
        return proposal

    def _equal(self, plan: Plan) -> Proposal | None:
        """Of those that can still be decided, the one that asks for the same."""
        for known in self._fleet.ledger.waiting.values():
            if _asked(known.plan) == _asked(plan) and self.now(known).state is ProposalState.WAITING:
                return known
        return None

    async def _propose(self, plan: Plan, *, actor: Actor, key: str, reason: str) -> None:
        now = self._fleet.clock.wall()
        longer = self._desk.plans.extend(plan.id, until=now + self._fleet.config.times.proposal_s)
        fresh = Proposal(plan=longer, state=ProposalState.WAITING, proposed_at=now, proposed_by=actor)
        pool = plan.request.pool

        def changed() -> tuple[Proposal, ...]:
            """The new one; older ones of the pool, and those whose time is over, are settled."""
            settled = []
            for known in self._fleet.ledger.waiting.values():
                seen = self.now(known)
                if seen.state is ProposalState.WAITING and known.plan.request.pool == pool:
                    seen = self._decided(known, ProposalState.OVERTAKEN, by=actor.name, reason="a later proposal")
                if seen.state is not ProposalState.WAITING:
                    settled.append(seen)
            return (*settled, fresh)

        message = f"a person is asked for {plan.target} nodes, there are {plan.nodes}"
        await self._desk.noted("propose", message, actor, key, reason, pool=pool, proposals=changed)

    def _decided(self, proposal: Proposal, state: ProposalState, *, by: str, reason: str) -> Proposal:
        return replace(
            proposal, state=state, decided_at=self._fleet.clock.wall(), decided_by=by, decision_reason=reason
        )


def _asked(plan: Plan) -> tuple[object, ...]:
    """Equal for plans of which people need to see one."""
    request = plan.request
    return request.pool, request.actor, request.is_kill, plan.target, frozenset(request.retire)
