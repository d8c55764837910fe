"""Records that a restart needs, in one SQLite file: sessions, models, checkpoints, requests and their answers.

A request is stored before the client learns of it, and its answer before anyone reads it. A model's newest state on
disk has a number; requests with higher numbers are computed again after a restart, which gives the same bits.
"""

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from astraflow.contract.errors import UnknownPolicy

KEPT_ANSWERS = 512
"""Answers of a model or sampler that stay; clients read theirs within a few requests."""

_SCHEMA = """
create table if not exists tenants (name text primary key, tokens integer not null default 0);
create table if not exists sessions (id text primary key, tenant text not null, heard_at real not null);
create table if not exists models (
    id text primary key, tenant text not null, session text not null, base text not null, rank integer not null,
    seed integer not null, targets text not null, metadata text not null, created_at real not null,
    state integer not null default 0, last integer not null default 0, steps integer not null default 0);
create table if not exists samplers (
    id text primary key, tenant text not null, session text not null, base text not null, path text not null);
create table if not exists checkpoints (
    path text primary key, tenant text not null, model text not null, kind text not null,
    size_bytes integer not null, metadata text not null, created_at real not null, expires_at real);
create table if not exists requests (
    id text primary key, owner text not null, tenant text not null, number integer not null, kind text not null,
    body blob, answer blob, outcome text);
create index if not exists requests_by_owner on requests (owner, number);
create index if not exists requests_waiting on requests (tenant, owner) where outcome is null;
"""

Row = TypeVar("Row", bound="SessionRow | ModelRow | SamplerRow | CheckpointRow | RequestRow")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """Session of a client, until it is closed."""

    id: str
    tenant: str
    heard_at: float
    """Unix seconds of the last sign of life of the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """Model of a tenant."""

    id: str
    tenant: str
    session: str
    base: str
    rank: int
    seed: int
    targets: str
    """Names of the adapted layers within a block, joined by commas."""
    metadata: str
    """JSON."""
    created_at: float
    state: int = 0
    """Number of the request after which the newest state on disk was written; 0: the initial weights."""
    last: int = 0
    """Number of the newest accepted request."""
    steps: int = 0
    """Optimizer steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """Sampling session. path: of the folder with its weights below the tenant's; empty: the base alone."""

    id: str
    tenant: str
    session: str
    base: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """Checkpoint that a tenant saved by name. path: `tinker://MODEL/KIND/NAME`."""

    path: str
    tenant: str
    model: str
    kind: str
    """`training` or `sampler`."""
    size_bytes: int
    metadata: str
    created_at: float
    expires_at: float | None
    """Unix seconds after which it is deleted; None: it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """Accepted request, and its answer once there is one."""

    id: str
    owner: str
    """Model or sampling session."""
    tenant: str
    number: int
    kind: str
    body: bytes
    answer: bytes | None = None
    outcome: str | None = None
    """`ok`, or whose fault the failure is: `user` or `server`; None: not computed yet."""


class Store:
    """Tables of a server. For one thread; calls take a fraction of a millisecond."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = normal")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def add(self, row: Row) -> None:
        """Adds a row, or replaces the one with the same id."""
        values = asdict(row)
        marks = ", ".join("?" for _ in values)
        self._run(
            f"insert or replace into {_TABLES[type(row)]} ({', '.join(values)}) values ({marks})",  # noqa: S608
            *values.values(),
        )

    def find(self, kind: type[Row], identity: str) -> Row | None:
        """Returns the row with an id, which is its first field."""
        return next(iter(self._rows(kind, f"{fields(kind)[0].name} = ?", identity)), None)

    def own(self, kind: type[Row], tenant: str, identity: str) -> Row:
        """Returns the row with an id. Raises: UnknownPolicy, also for a row of another tenant."""
        row = self.find(kind, identity)
        if row is None or row.tenant != tenant:
            raise _unknown(_TABLES[kind].removesuffix("s"), identity)
        return row

    def own_checkpoint(self, tenant: str, path: str, *, kind: str) -> CheckpointRow:
        """Returns a checkpoint of a kind by its path. Raises: UnknownPolicy."""
        row = self.own(CheckpointRow, tenant, path)
        if row.kind != kind:
            raise _unknown(f"{kind} checkpoint", path)
        return row

    def models(self, tenant: str) -> list[ModelRow]:
        """Returns the models of a tenant, the newest first."""
        return self._rows(ModelRow, "tenant = ? order by created_at desc", tenant)

    def silent(self, tenant: str, *, before: float) -> list[SessionRow]:
        """Returns the sessions of a tenant whose clients were not heard since a time."""
        return self._rows(SessionRow, "tenant = ? and heard_at < ?", tenant, before)

    def remove_session(self, session: str) -> None:
        """Removes a session's row."""
        self._run("delete from sessions where id = ?", session)

    def closed_models(self) -> list[ModelRow]:
        """Returns the models whose sessions are closed."""
        return self._rows(ModelRow, "session not in (select id from sessions)")

    def last_pass(self, model: str) -> RequestRow | None:
        """Returns the newest passes of a model that were computed."""
        condition = "owner = ? and kind = 'forward_backward' and outcome = 'ok' order by number desc limit 1"
        return next(iter(self._rows(RequestRow, condition, model)), None)

    def snapshots(self, session: str) -> list[SamplerRow]:
        """Returns the samplers of a session that have weights of their own, the newest first."""
        return self._rows(SamplerRow, "session = ? and path = 'samplers/' || id order by rowid desc", session)

    def remove_sampler(self, sampler: str) -> None:
        """Removes a sampler and its answered requests."""
        self._run("delete from samplers where id = ?", sampler)
        self._run("delete from requests where owner = ? and outcome is not null", sampler)

    def checkpoints(self, tenant: str, model: str = "") -> list[CheckpointRow]:
        """Returns the checkpoints of a tenant, of one model if it is named, the newest first."""
        return self._rows(
            CheckpointRow, "tenant = ? and (model = ? or ? = '') order by created_at desc", tenant, model, model
        )

    def expired(self) -> list[CheckpointRow]:
        """Returns the checkpoints whose time is over."""
        return self._rows(CheckpointRow, "expires_at < ?", time.time())

    def remove_checkpoint(self, path: str) -> None:
        """Removes a checkpoint's row."""
        self._run("delete from checkpoints where path = ?", path)

    def accept(self, request: RequestRow) -> None:
        """Stores a request, and that it is the newest of its model."""
        with self._connection:
            self._run("begin immediate")
            self.add(request)
            self._run("update models set last = max(last, ?) where id = ?", request.number, request.owner)

    def unanswered(self) -> list[RequestRow]:
        """Returns the requests that were accepted and not answered, in the order of their owners' numbers."""
        return self._rows(RequestRow, "outcome is null order by number, rowid")

    def waiting(self, *, tenant: str = "", owner: str = "") -> int:
        """Returns the number of requests without an answer, of a tenant, or of a model or sampler."""
        condition = "outcome is null and ? in ('', tenant) and ? in ('', owner)"
        row = self._run(f"select count(*) from requests where {condition}", tenant, owner).fetchone()  # noqa: S608
        return int(row[0])

    def since_state(self, model: str, *, before: int) -> list[RequestRow]:
        """Returns the answered passes of a model since its state on disk, before a number, in order."""
        condition = (
            "owner = ? and kind = 'forward_backward' and outcome is not null and number < ? "
            "and number > (select state from models where id = ?) order by number"
        )
        return self._rows(RequestRow, condition, model, before, model)

    def answer(self, request: RequestRow, answer: bytes, outcome: str, *, tokens: int, state: int | None) -> None:
        """Stores an answer and the tokens that it took. state: number of the state that was written for it, if any:
        the requests before need not be computed again."""
        with self._connection:
            self._run("begin immediate")
            self._run("update requests set answer = ?, outcome = ? where id = ?", answer, outcome, request.id)
            self._run(
                "insert into tenants values (?, ?) on conflict (name) do update set tokens = tokens + excluded.tokens",
                request.tenant,
                tokens,
            )
            if state is not None:
                steps = int(request.kind == "optim_step" and outcome == "ok")
                self._run("update models set state = ?, steps = steps + ? where id = ?", state, steps, request.owner)
                self._run("update requests set body = x'' where owner = ? and number <= ?", request.owner, state)
            oldest = request.number - KEPT_ANSWERS
            condition = "owner = ? and number < ? and outcome is not null"
            if state is not None or request.kind == "sample":
                self._run(f"delete from requests where {condition}", request.owner, oldest)  # noqa: S608

    def tokens(self, tenant: str) -> int:
        """Returns the tokens that a tenant has used."""
        row = self._run("select tokens from tenants where name = ?", tenant).fetchone()
        return 0 if row is None else int(row[0])

    def _rows(self, kind: type[Row], condition: str, *values: Any) -> list[Row]:
        names = [field.name for field in fields(kind)]
        rows = self._run(f"select {', '.join(names)} from {_TABLES[kind]} where {condition}", *values)  # noqa: S608
        return [kind(**dict(zip(names, row, strict=True))) for row in rows]

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)


_TABLES: Mapping[type, str] = {
    SessionRow: "sessions",
    ModelRow: "models",
    SamplerRow: "samplers",
    CheckpointRow: "checkpoints",
    RequestRow: "requests",
}


def metadata_json(metadata: Mapping[str, Any] | None) -> str:
    """Returns metadata of a client as JSON."""
    return json.dumps(metadata or {})


def tenant_folder(folder: Path, tenant: str) -> Path:
    """Returns the folder of what a tenant keeps, below that of the server."""
    return folder / "tenants" / tenant


def states_folder(folder: Path, tenant: str, model: str) -> Path:
    """Returns the folder of a model's states, below that of the server."""
    return tenant_folder(folder, tenant) / "models" / model / "states"


def folder_bytes(folder: Path) -> int:
    """Returns the size of the files in a folder and below it. Bytes."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                total += (Path(parent) / name).stat().st_size
    return total


def checkpoint_folder(folder: Path, path: str) -> Path:
    """Returns the folder of a stored checkpoint, below that of the tenant."""
    model, kind, name = path.removeprefix("tinker://").split("/")
    return folder / "models" / model / kind / name


def sampler_folder(folder: Path, sampler: str) -> Path:
    """Returns the folder with the weights of a sampling session, below that of the tenant."""
    return folder / "samplers" / sampler


def _unknown(noun: str, identity: str) -> UnknownPolicy:
    return UnknownPolicy(
        f"cannot find the {noun} {identity[:300]!r}: the tenant has none, or it was closed; check the name and the key",
        code="tinker.unknown",
    )
