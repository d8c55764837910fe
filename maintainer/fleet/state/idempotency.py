"""Idempotent changes: stored replies by key, and checks that apply to every change."""

import asyncio
import hashlib
import json
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.plans import Actor, Role
from maintainer.fleet.ledger.records import Reply
from maintainer.fleet.state.fleet import FleetState

_DECISION = TypeAdapter(Decision)


class IdempotentReplies:
    """Stored replies by idempotency key. One instance per service; every change looks up its key first."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self.lock = asyncio.Lock()
        """Held from the lookup of a reply until it is stored, so that calls with equal keys run one after the other."""

    async def find(self, key: str, request_hash: str) -> dict[str, Any] | None:
        """Returns the stored reply; None for a new key. Raises: Conflict when the key was used for another request."""
        if not 1 <= len(key) <= 128 or not key.isprintable():
            raise InvalidInput(
                "cannot make the change: the idempotency key is missing or invalid; use 1 to 128 printable characters",
                code="fleet.invalid_idempotency_key",
            )
        reply = await self._fleet.ledger.reply(key)
        if reply is None:
            return None
        if reply.request_hash != request_hash:
            raise Conflict(
                f"cannot make the change: the idempotency key {key!r} was used for another change; use a new key",
                code="fleet.idempotency_key_reused",
            )
        return dict(json.loads(reply.reply_json))

    def make_reply(self, key: str, request_hash: str, answer: dict[str, Any]) -> Reply:
        """Returns a reply to be stored in the transaction of the change."""
        return Reply(key=key, request_hash=request_hash, reply_json=json.dumps(answer), at=self._fleet.clock.wall())


def decision_reply(decision: Decision) -> dict[str, Any]:
    """Returns a decision without findings as a stored reply."""
    reply: dict[str, Any] = _DECISION.dump_python(replace(decision, findings=()), mode="json")
    return reply


def stored_decision(answer: dict[str, Any]) -> Decision:
    """Returns the decision of a stored reply."""
    return _DECISION.validate_python(answer)


def hash_request(*parts: Any) -> str:
    """Returns a hash of the request under a key."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def check_reason(reason: str) -> None:
    """Checks the reason of a change. Raises: InvalidInput."""
    if not reason.strip() or len(reason) > 2000:
        raise InvalidInput(
            "cannot make the change: the reason is empty or too long; write 1 to 2000 characters for the audit log",
            code="fleet.invalid_reason",
        )
    if "\0" in reason or any(0xD800 <= ord(character) < 0xE000 for character in reason):
        raise InvalidInput(
            "cannot make the change: the reason contains NUL or unpaired surrogates; write plain text",
            code="fleet.invalid_reason",
        )


def require_pool_access(actor: Actor, pool: str) -> None:
    """Checks that an actor of one pool changes no other. pool: empty for changes of all pools. Raises: NotPermitted."""
    if actor.pool not in ("", pool):
        target = f"pool {pool[:140]}" if pool else "all pools"
        raise NotPermitted(
            f"cannot change {target}: {actor.name} acts on pool {actor.pool} only; use a credential for all pools",
            code="fleet.other_pool",
        )


def require_role(actor: Actor, role: Role, what: str) -> None:
    """Checks an actor's role. what: the action, as a verb phrase. Raises: NotPermitted for another role."""
    if actor.role is not role:
        raise NotPermitted(
            f"cannot {what}: {actor.name} has the role {actor.role.value}; ask an actor with the role {role.value}",
            code="fleet.missing_role",
        )
