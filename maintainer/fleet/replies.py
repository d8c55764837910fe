"""Changes that are made once: what was answered under each key, and what every change has to have."""

import asyncio
import hashlib
import json
from typing import Any

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet import Actor, Role
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.records import Reply


class Replies:
    """One for the service: whoever changes something asks it first."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.turn = asyncio.Lock()
        """Held from the look for a reply until there is one: two calls under one key come one after the other."""

    async def known(self, key: str, asked: str) -> dict[str, Any] | None:
        """What was answered under this key. Raises: Conflict when that was to something else."""
        if not 1 <= len(key) <= 128 or not key.isprintable():
            raise InvalidInput("a change needs an idempotency key of 1 to 128 printable characters")
        known = await self._fleet.ledger.reply(key)
        if known is None:
            return None
        if known.asked != asked:
            raise Conflict(f"the idempotency key {key!r} was used for another change: take a new one for each change")
        return dict(json.loads(known.reply_json))

    def kept(self, key: str, asked: str, said: dict[str, Any]) -> Reply:
        """To be written together with the change."""
        return Reply(key=key, asked=asked, reply_json=json.dumps(said), at=self._fleet.clock.wall())


def asked_for(*said: Any) -> str:
    """Hash of what is asked for under a key."""
    return hashlib.blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def check_reason(reason: str) -> None:
    """Raises: InvalidInput."""
    if not reason.strip() or len(reason) > 2000:
        raise InvalidInput("a change needs a reason of at most 2000 characters: the journal keeps it")
    if "\0" in reason or any(0xD800 <= ord(character) < 0xE000 for character in reason):
        raise InvalidInput("a change's reason is text that can be kept: without NUL and halves of surrogate pairs")


def within(actor: Actor, pool: str) -> None:
    """Refuse somebody of one pool who touches another. pool: empty for what is of all pools. Raises: NotPermitted."""
    if actor.pool not in ("", pool):
        what = f"pool {pool[:140]}" if pool else "what is of all pools"
        raise NotPermitted(f"{actor.name} acts on pool {actor.pool} only, not on {what}: ask somebody of all pools")


def needs(actor: Actor, role: Role, what: str) -> None:
    """Raises: NotPermitted for another role."""
    if actor.role is not role:
        raise NotPermitted(f"{what} is for the role {role.value}; {actor.name} has {actor.role.value}")
