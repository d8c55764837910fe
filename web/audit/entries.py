"""The audit: who did what, when, from where; entries that are only ever added, each sealed by the next.

Every entry carries the hash of the one before it, so that none can be changed, left out or put in between without all
later hashes changing too. The newest hash is sealed with the secret beside the database. What this does not show: a
database put back, whole, to an earlier copy of itself.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlmodel import Session, col, delete, select

from astraflow.runtime.clock import Clock
from web.db import Database
from web.tables import AuditChain, AuditEntry

FIRST_HASH = "0" * 64
LONGEST_TEXT = 2000
BATCH = 1000

HASHED = (
    "sequence",
    "at",
    "actor",
    "role",
    "via",
    "came_from",
    "action",
    "target",
    "before",
    "after",
    "result",
    "reason",
    "previous_hash",
)

SECRET_SHAPES = re.compile(r"astraflow_pat_[\w-]+|(?<=login\?token=)[\w-]+")
"""What secrets look like that people paste into a reason."""

Facts = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who acts: always taken from the session or token on the server, never from what was sent."""

    name: str
    role: str
    via: str
    """`session`, `token NAME`, `login`, or `astraflow` for the process itself."""
    came_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What was done, or refused. Neither facts nor texts hold secrets."""

    action: str
    """A noun and a verb: `node.drain`."""
    target: str = ""
    before: Facts = field(default_factory=dict)
    after: Facts = field(default_factory=dict)
    result: str = "done"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What checking the chain found."""

    checked: int
    first_sequence: int
    last_sequence: int
    last_hash: str
    problem: str = ""
    """The first thing that does not hold; empty when everything does."""


class Trail:
    """Writes the audit and checks it."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def note(self, author: Author, deed: Deed) -> None:
        """Add one entry by itself."""
        await self._database.do(lambda session: self.append(session, author, deed))

    def append(self, session: Session, author: Author, deed: Deed) -> AuditEntry:
        """Add one entry within the transaction that does the deed: both happen or neither."""
        chain = session.get_one(AuditChain, 1, with_for_update=True)
        entry = AuditEntry(
            sequence=chain.last_sequence + 1,
            at=round(self._clock.wall(), 6),
            actor=_clean(author.name),
            role=_clean(author.role),
            via=_clean(author.via),
            came_from=_clean(author.came_from),
            action=_clean(deed.action),
            target=_clean(deed.target),
            before=_facts(deed.before),
            after=_facts(deed.after),
            result=deed.result,
            reason=_clean(deed.reason),
            previous_hash=chain.last_hash,
            entry_hash="",
        )
        entry.entry_hash = entry_hash(entry)
        session.add(entry)
        chain.last_sequence, chain.last_hash = entry.sequence, entry.entry_hash
        chain.seal = self._seal(chain)
        session.flush()
        return entry

    async def verify(self) -> Verdict:
        """Read every entry and check the chain from end to end."""
        return await self._database.look(self._verified)

    def prune(self, session: Session, *, before_at: float, author: Author) -> int:
        """Remove what is older, and leave an entry that says so. Returns how many were removed."""
        chain = session.get_one(AuditChain, 1, with_for_update=True)
        newest = session.exec(
            select(AuditEntry).where(AuditEntry.at < before_at).order_by(col(AuditEntry.sequence).desc()).limit(1)
        ).first()
        if newest is None:
            return 0
        removed = newest.sequence + 1 - chain.first_sequence
        chain.first_sequence, chain.anchor_hash = newest.sequence + 1, newest.entry_hash
        chain.seal = self._seal(chain)
        session.flush()
        session.exec(delete(AuditEntry).where(col(AuditEntry.sequence) < chain.first_sequence))
        facts = {"entries": removed, "through": newest.sequence}
        self.append(session, author, Deed(action="audit.prune", target="audit", before=facts))
        return removed

    def _verified(self, session: Session) -> Verdict:
        chain = session.get_one(AuditChain, 1)
        expected, previous, problem = chain.first_sequence, chain.anchor_hash, ""
        for entry in _entries(session):
            problem = _break(entry, expected=expected, previous=previous)
            if problem:
                break
            expected, previous = entry.sequence + 1, entry.entry_hash
        if not problem and (expected - 1, previous) != (chain.last_sequence, chain.last_hash):
            problem = f"entries {expected} to {chain.last_sequence} are missing at the end"
        is_new = (chain.last_sequence, chain.seal) == (0, "")
        if not problem and not is_new and not hmac.compare_digest(chain.seal, self._seal(chain)):
            problem = "the seal of the newest entry was not made with the secret of this installation"
        return Verdict(
            checked=expected - chain.first_sequence,
            first_sequence=chain.first_sequence,
            last_sequence=chain.last_sequence,
            last_hash=chain.last_hash,
            problem=problem,
        )

    def _seal(self, chain: AuditChain) -> str:
        text = f"{chain.first_sequence} {chain.anchor_hash} {chain.last_sequence} {chain.last_hash}"
        return hmac.new(self._database.secret, f"audit {text}".encode(), hashlib.sha256).hexdigest()


def entry_hash(entry: AuditEntry) -> str:
    """SHA-256 over the entry's own columns and the hash before it, as JSON with sorted keys and no spaces."""
    content = {name: getattr(entry, name) for name in HASHED}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _entries(session: Session) -> Iterator[AuditEntry]:
    """All, oldest first, a batch in memory at a time."""
    after = -1
    while batch := session.exec(
        select(AuditEntry).where(AuditEntry.sequence > after).order_by(col(AuditEntry.sequence)).limit(BATCH)
    ).all():
        yield from batch
        after = batch[-1].sequence
        session.expunge_all()


def _break(entry: AuditEntry, *, expected: int, previous: str) -> str:
    if entry.sequence != expected:
        return f"entry {expected} is missing: after it comes {entry.sequence}"
    if entry.previous_hash != previous:
        return f"entry {entry.sequence} does not follow the one before it"
    if entry.entry_hash != entry_hash(entry):
        return f"entry {entry.sequence} was changed after it was written"
    return ""


def _clean(text: str) -> str:
    """What any database keeps and shows the same: no NUL, no half characters, no secrets, not endless."""
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return SECRET_SHAPES.sub("[secret]", text)[:LONGEST_TEXT]


def _facts(facts: Facts) -> str:
    if not facts:
        return ""
    known = {name: _clean(value) if isinstance(value, str) else value for name, value in facts.items()}
    return json.dumps(known, sort_keys=True, ensure_ascii=False)
