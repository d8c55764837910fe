"""Proposals: plans that agents submit for approval, and that people apply or reject."""

from dataclasses import replace

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import Proposal, ProposalState
from astraflow.contract.fleet.plans import Actor, Plan, PlanId, Verdict
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.values import Values
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.guard.rules import HUMAN_ROLES
from maintainer.fleet.state.fleet import FleetState


class Proposals:
    """Submits, rejects and lists proposals. One instance per service."""

    def __init__(self, fleet: FleetState, manager: FleetManager) -> None:
        self._fleet = fleet
        self._manager = manager

    async def propose(self, plan_id: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Submits a plan for approval and extends its validity. It supersedes earlier proposals for the pool.

        A waiting proposal that asks for the same is returned instead, because a person may be reading it.
        Raises: Conflict for an unknown or expired plan; NotPermitted for a plan that the guard refuses, or of another
        actor.
        """
        stored = await self._fleet.ledger.proposal(plan_id)
        if stored is not None and await self._fleet.ledger.reply(key) is not None:
            await self._record(stored, actor=actor, key=key, reason=reason)  # checks the key; records nothing again
            return self.current(stored)
        plan = self._manager.plans.known(plan_id)
        if plan is None:
            raise Conflict(
                f"cannot propose plan {plan_id}: it is unknown or expired; plan again", code="fleet.unknown_plan"
            )
        if plan.verdict is Verdict.REFUSED:
            raise NotPermitted("; ".join(finding.message for finding in plan.findings), code="fleet.plan_not_allowed")
        if plan.request.actor != actor:
            raise NotPermitted(
                f"cannot propose plan {plan_id}: {plan.request.actor.name} made it; make a plan of your own",
                code="fleet.other_planner",
            )
        equal = self._equal(plan)
        if equal is not None:
            return equal
        return await self._propose(plan, actor=actor, key=key, reason=reason)

    async def reject(self, plan_id: PlanId, *, actor: Actor, key: str, reason: str) -> Decision:
        """Rejects a waiting proposal, and with it the plan. Raises: InvalidInput, NotPermitted, Conflict."""
        if actor.role not in HUMAN_ROLES:
            raise NotPermitted(
                f"cannot reject the proposal: {actor.name!r} has the role {actor.role.value}; ask an operator",
                code="fleet.people_only",
            )
        waiting = self._fleet.ledger.waiting_proposals.get(plan_id)
        if waiting is None and await self._fleet.ledger.reply(key) is None:
            raise InvalidInput(
                f"cannot reject plan {plan_id}: it does not wait for approval; list the waiting proposals",
                code="fleet.proposal_not_waiting",
            )
        proposal = waiting or await self._fleet.ledger.proposal(plan_id)
        pool = proposal.plan.request.pool if proposal is not None else None

        def decided_proposals() -> tuple[Proposal, ...]:
            current = self._fleet.ledger.waiting_proposals.get(plan_id)
            if current is None:
                raise Conflict(
                    f"cannot reject plan {plan_id}: it has been decided meanwhile; read it again",
                    code="fleet.proposal_decided",
                )
            return (self._decided(current, ProposalState.REJECTED, by=actor.name, reason=reason),)

        decision = await self._manager.record_decision(
            RecordKind.REJECT,
            {"plan": plan_id},
            actor,
            key,
            reason,
            pool=pool,
            proposals=decided_proposals,
        )
        self._manager.plans.discard(plan_id)
        return decision

    async def page(self, *, only_waiting: bool, before: str, limit: int) -> tuple[tuple[Proposal, ...], bool]:
        """Returns a page of proposals, newest first, and whether older ones exist."""
        if not only_waiting:
            proposals, has_older = await self._fleet.ledger.proposals(before=before, limit=limit)
            return tuple(self.current(proposal) for proposal in proposals), has_older
        waiting = [
            self.current(proposal)
            for proposal in self._fleet.ledger.waiting_proposals.values()
            if not before or proposal.plan.id < before
        ]
        open_proposals = sorted(
            (proposal for proposal in waiting if proposal.state is ProposalState.WAITING),
            key=lambda proposal: proposal.plan.id,
            reverse=True,
        )
        return tuple(open_proposals[:limit]), len(open_proposals) > limit

    def current(self, proposal: Proposal) -> Proposal:
        """Returns the proposal in its current state: a waiting one can expire, or its pool can change."""
        if proposal.state is not ProposalState.WAITING:
            return proposal
        plan = proposal.plan
        if self._manager.plans.known(plan.id) is None:
            return replace(proposal, state=ProposalState.EXPIRED, decided_at=plan.expires_at)
        if plan.request.run is not None:
            return proposal
        pool = self._fleet.ledger.pools.get(plan.request.pool)
        if pool is None or pool.version != plan.observed_version:
            return replace(proposal, state=ProposalState.SUPERSEDED)
        return proposal

    def _equal(self, plan: Plan) -> Proposal | None:
        """Returns a waiting proposal for the same change; None without one."""
        for waiting_proposal in self._fleet.ledger.waiting_proposals.values():
            if (
                _request_key(waiting_proposal.plan) == _request_key(plan)
                and self.current(waiting_proposal).state is ProposalState.WAITING
            ):
                return waiting_proposal
        return None

    async def _propose(self, plan: Plan, *, actor: Actor, key: str, reason: str) -> Proposal:
        now = self._fleet.clock.wall()
        extended = self._manager.plans.extend(plan.id, until=now + self._fleet.config.times.proposal_valid_s)
        proposal = Proposal(plan=extended, state=ProposalState.WAITING, proposed_at=now, proposed_by=actor)
        await self._record(proposal, actor=actor, key=key, reason=reason)
        return proposal

    async def _record(self, proposal: Proposal, *, actor: Actor, key: str, reason: str) -> None:
        """Records a new proposal once per key. Raises: Conflict when the key was used for another request."""
        plan, pool = proposal.plan, proposal.plan.request.pool

        def changed_proposals() -> tuple[Proposal, ...]:
            """Returns the new proposal, and superseded or expired ones."""
            settled = []
            for waiting_proposal in self._fleet.ledger.waiting_proposals.values():
                current = self.current(waiting_proposal)
                if current.state is ProposalState.WAITING and waiting_proposal.plan.request.pool == pool:
                    current = self._decided(
                        waiting_proposal, ProposalState.SUPERSEDED, by=actor.name, reason="a later proposal"
                    )
                if current.state is not ProposalState.WAITING:
                    settled.append(current)
            return (*settled, proposal)

        run = plan.request.run
        values: Values = {"target": plan.target, "nodes": plan.nodes} if run is None else {"change": run.sentence}
        await self._manager.record_decision(
            RecordKind.PROPOSE, values, actor, key, reason, pool=pool, proposals=changed_proposals, subject=plan.id
        )

    def _decided(self, proposal: Proposal, state: ProposalState, *, by: str, reason: str) -> Proposal:
        return replace(
            proposal, state=state, decided_at=self._fleet.clock.wall(), decided_by=by, decision_reason=reason
        )


def _request_key(plan: Plan) -> tuple[object, ...]:
    """Returns a value that is equal for plans of the same change."""
    request = plan.request
    return request.pool, request.actor, request.is_kill, plan.target, frozenset(request.retire), request.run
