"""Faults on somebody's word: nodes that end as if their machines had failed, to see what a run makes of it."""

import random
from dataclasses import asdict
from typing import Any

from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.contract.fleet import Actor, Decision, InstanceState, KillScope, LaunchId, Loss, Role
from astraflow.contract.ids import PoolId
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.ledger import Changes, Ledger
from maintainer.fleet.providers.base import Breakable
from maintainer.fleet.replies import Replies, asked_for, check_reason, needs, within


class Faults:
    """One for the service. They are in the journal, with who wanted them; the ledger is told nothing, as in earnest."""

    def __init__(self, fleet: Fleet, replies: Replies) -> None:
        self._fleet = fleet
        self._replies = replies

    async def lose(self, pool: PoolId, *, share: float, actor: Actor, key: str, reason: str) -> Loss:
        """Have that share of the nodes that work fail, at least one. The same key ends the same nodes and no others.

        Raises: NotPermitted for all but admins, and while the kill switch stops everybody; InvalidInput where the
        provider cannot do that or no node works; Conflict; the provider's errors.
        """
        needs(actor, Role.ADMIN, "having nodes fail")
        within(actor, pool)
        check_reason(reason)
        provider = self._fleet.provider(self._fleet.pool(pool).spec.provider)
        if not isinstance(provider, Breakable):
            kind = provider.capabilities().kind
            raise InvalidInput(f"pool {pool} has machines of {kind}: these do not fail on somebody's word")
        asked = asked_for("lose", pool, share)
        async with self._replies.turn:
            known = await self._replies.known(key, asked)
            loss = _loss(known, actor) if known is not None else await self._noted(pool, share, actor, key, reason)
        for launch in loss.lost:
            await provider.lose(launch)
        return loss

    async def _noted(self, pool: PoolId, share: float, actor: Actor, key: str, reason: str) -> Loss:
        """Choose, and write that down before anything ends."""
        if not 0 < share <= 1:
            raise InvalidInput(f"a share of the nodes is above 0 and at most 1, not {share:g}")
        if self._fleet.kill is KillScope.ALL:
            raise NotPermitted("the kill switch is on for everybody: an admin turns it off")

        def decide(_: Ledger) -> tuple[Changes, Loss]:
            ready = sorted(one.id for one in self._fleet.instances(pool) if one.state is InstanceState.READY)
            if not ready:
                raise InvalidInput(f"no node of pool {pool} works now: none can be lost")
            lost = tuple(random.Random(key).sample(ready, max(1, round(share * len(ready)))))
            message = f"simulated fault: {len(lost)} of {len(ready)} nodes end without notice"
            decision = self._fleet.decision("fault", pool=pool, actor=actor, reason=reason, message=message, key=key)
            said = {"decision": asdict(decision) | {"actor": None}, "lost": lost}
            reply = self._replies.kept(key, asked_for("lose", pool, share), said)
            return Changes(decisions=(decision,), reply=reply), Loss(decision=decision, lost=lost)

        return await self._fleet.ledger.change(decide)


def _loss(said: dict[str, Any], actor: Actor) -> Loss:
    decision = Decision(**said["decision"] | {"actor": actor, "findings": ()})
    return Loss(decision=decision, lost=tuple(LaunchId(launch) for launch in said["lost"]))
