"""Append-only audit log of who did what, when and from where, secured by a hash chain.

Every entry contains the hash of the previous one, so changing, removing or inserting an entry changes all later hashes.
The newest hash is sealed with the secret that is stored next to the database. Not detected: restoring the whole
database from an earlier copy.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TypeVar

from sqlmodel import Session, col, delete, select

from astraflow.contract.errors import AstraFlowError, NotPermitted, Unavailable
from astraflow.runtime.clock import Clock
from astraflow.runtime.database import storable_text
from astraflow.runtime.logs import get_logger
from astraflow.runtime.redaction import SECRET_PATTERN
from astraflow.runtime.retries import retry
from web.database.db import Database
from web.database.tables import AuditChain, AuditEntry, OpenCommand

T = TypeVar("T")
log = get_logger()

MAX_TEXT_LETTERS = 2000
BATCH = 1000

HASHED_COLUMNS = (
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

PROCESS_ENDED = "the web process ended during the command; the change may have been made: look at the current state"

Facts = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Author of an entry: taken from the session or token on the server, never from the request."""

    name: str
    role: str
    via: str
    """`session`, `token NAME`, `login`, or `astraflow` for the process itself."""
    came_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCommand:
    """Command that was executed, refused or failed. Contains no secrets."""

    action: str
    """Noun and verb: `node.drain`."""
    target: str = ""
    before: Facts = field(default_factory=dict)
    after: Facts = field(default_factory=dict)
    result: str = "done"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCheck:
    """Result of a verification of the chain."""

    checked: int
    """Verified entries. Count."""
    first_sequence: int
    """Sequence number of the first entry."""
    last_sequence: int
    """Sequence number of the last entry."""
    last_hash: str
    """Hash of the last entry."""
    problem: str = ""
    """First problem; empty if the chain is valid."""


class AuditLog:
    """Writes and verifies the audit log."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._late_writes: asyncio.Queue[Callable[[Session], None]] = asyncio.Queue()
        """Entries that wait for the end of an outage; few, because no command begins in one."""

    async def run(self) -> None:
        """Appends the entries that an outage of the database has delayed, until cancelled."""
        while True:
            write = await self._late_writes.get()
            await retry(partial(self._database.write, write), what="a delayed audit entry", clock=self._clock)

    async def record(
        self,
        author: Author,
        command: AuditedCommand,
        operation: Callable[[], Awaitable[T]],
        *,
        result_facts: Callable[[T], Facts] | None = None,
    ) -> T:
        """Runs an operation and appends its entry. The command is durable before: it always gets an entry.

        An outage of the database during the operation does not hide its result; the entry is then appended afterwards.
        result_facts: computes the audited facts from the result, where they are known only then.
        Raises: Unavailable when the operation was not begun because the database is; errors of the operation.
        """
        open_id = secrets.token_hex(16)
        await self._database.write(lambda session: session.add(_open_command(open_id, author, command)))
        try:
            result = await operation()
        except Exception as problem:
            text = str(problem) if isinstance(problem, AstraFlowError) else f"defect: {type(problem).__name__}"
            outcome = "refused" if isinstance(problem, NotPermitted) else "failed"
            after = {**command.after, "problem": text}
            await self._complete(open_id, author, replace(command, result=outcome, after=after))
            raise
        facts = result_facts(result) if result_facts is not None else command.after
        await self._complete(open_id, author, replace(command, after=facts))
        return result

    async def record_interrupted(self) -> None:
        """Appends the entries of commands during which an earlier process ended."""

        def write(session: Session) -> None:
            for row in session.exec(select(OpenCommand)).all():
                command = AuditedCommand(**json.loads(row.command_json))
                after = {**command.after, "problem": PROCESS_ENDED}
                self.append(
                    session, Author(**json.loads(row.author_json)), replace(command, result="unknown", after=after)
                )
                session.delete(row)

        await self._database.write(write)

    async def _complete(self, open_id: str, author: Author, command: AuditedCommand) -> None:
        def write(session: Session) -> None:
            row = session.get(OpenCommand, open_id)
            if row is not None:  # else the entry was appended by a try whose answer was lost
                session.delete(row)
                self.append(session, author, command)

        try:
            await self._database.write(write)
        except Unavailable as problem:
            log.warning("audit_entry_delayed", action=command.action, problem=str(problem))
            self._late_writes.put_nowait(write)

    async def write(self, author: Author, command: AuditedCommand) -> None:
        """Appends an entry in its own transaction."""
        await self._database.write(lambda session: self.append(session, author, command))

    def append(self, session: Session, author: Author, command: AuditedCommand) -> AuditEntry:
        """Appends an entry within the transaction of the command: both are committed or neither."""
        chain = session.get_one(AuditChain, 1, with_for_update=True)
        entry = AuditEntry(
            sequence=chain.last_sequence + 1,
            at=round(self._clock.wall(), 6),
            actor=_clean(author.name),
            role=_clean(author.role),
            via=_clean(author.via),
            came_from=_clean(author.came_from),
            action=_clean(command.action),
            target=_clean(command.target),
            before=_facts(command.before),
            after=_facts(command.after),
            result=command.result,
            reason=_clean(command.reason),
            previous_hash=chain.last_hash,
            entry_hash="",
        )
        entry.entry_hash = entry_hash(entry)
        session.add(entry)
        chain.last_sequence, chain.last_hash = entry.sequence, entry.entry_hash
        chain.seal = self._seal(chain)
        session.flush()
        return entry

    async def verify(self) -> ChainCheck:
        """Reads every entry and verifies the chain."""
        return await self._database.read(self._verified)

    def prune(self, session: Session, *, before_at: float, author: Author) -> int:
        """Removes older entries, and appends an entry about it. Returns the number of removed entries."""
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
        self.append(session, author, AuditedCommand(action="audit.prune", target="audit", before=facts))
        return removed

    def _verified(self, session: Session) -> ChainCheck:
        chain = session.get_one(AuditChain, 1)
        expected, previous, problem = chain.first_sequence, chain.anchor_hash, ""
        for entry in _entries(session):
            problem = _chain_problem(entry, expected=expected, previous=previous)
            if problem:
                break
            expected, previous = entry.sequence + 1, entry.entry_hash
        if not problem and (expected - 1, previous) != (chain.last_sequence, chain.last_hash):
            problem = f"entries {expected} to {chain.last_sequence} are missing at the end"
        is_new = (chain.last_sequence, chain.seal) == (0, "")
        if not problem and not is_new and not hmac.compare_digest(chain.seal, self._seal(chain)):
            problem = "the seal of the newest entry does not match the secret of this installation"
        return ChainCheck(
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
    """SHA-256 over the entry's columns and the previous hash, as JSON with sorted keys and no spaces."""
    content = {name: getattr(entry, name) for name in HASHED_COLUMNS}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _entries(session: Session) -> Iterator[AuditEntry]:
    """All entries, oldest first, loaded in batches."""
    after = -1
    while batch := session.exec(
        select(AuditEntry).where(AuditEntry.sequence > after).order_by(col(AuditEntry.sequence)).limit(BATCH)
    ).all():
        yield from batch
        after = batch[-1].sequence
        session.expunge_all()


def _chain_problem(entry: AuditEntry, *, expected: int, previous: str) -> str:
    if entry.sequence != expected:
        return f"entry {expected} is missing: the next one is {entry.sequence}"
    if entry.previous_hash != previous:
        return f"entry {entry.sequence} does not follow the one before it"
    if entry.entry_hash != entry_hash(entry):
        return f"entry {entry.sequence} was changed after it was written"
    return ""


def _open_command(open_id: str, author: Author, command: AuditedCommand) -> OpenCommand:
    """Row of a command; JSON in ASCII is stored alike by every database."""
    author_json, command_json = (SECRET_PATTERN.sub("[secret]", json.dumps(asdict(fact))) for fact in (author, command))
    return OpenCommand(id=open_id, author_json=author_json, command_json=command_json)


def _clean(text: str) -> str:
    """Text that every database stores alike, without secrets and limited in length."""
    return SECRET_PATTERN.sub("[secret]", storable_text(text))[:MAX_TEXT_LETTERS]


def _facts(facts: Facts) -> str:
    if not facts:
        return ""
    cleaned = {name: _clean(value) if isinstance(value, str) else value for name, value in facts.items()}
    return json.dumps(cleaned, sort_keys=True, ensure_ascii=False)
