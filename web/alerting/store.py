"""Rules, receivers and alerts in the database; every change of a person is audited in its transaction."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import func
from sqlmodel import Session, col, delete, select

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.config.base import suggest_name
from web.alerting.receivers import ReceiverKind, ReceiverSpec, public_target, signing_key
from web.alerting.rules import MAX_RULES, RuleSpec
from web.database.db import Database
from web.database.tables import Alert, AlertDelivery, AlertReceiver, AlertRule
from web.security.audit_log import AuditedCommand, AuditLog, Author, Facts
from web.security.problems import NotFound

T = TypeVar("T")

MAX_RECEIVERS = 20
MAX_MUTE_S = 30 * 86400.0

RUN_ALERTS = 200
"""Alerts of one run that its charts show, the latest."""

KEPT_ALERTS = 2000
"""Resolved alerts that are kept, the newest."""

FILE_AUTHOR = Author(name="", role="", via="astraflow", came_from="")
"""Author of changes by the file of rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Stored rule."""

    id: int
    spec: RuleSpec
    changed_at: float
    """Time of the latest change of the rule. Unix seconds."""
    muted_until: float = 0.0
    """Time until which its notices are not sent; 0 for none. Unix seconds."""
    created_by: str = ""
    """Name of the user; empty for a rule of the file."""
    is_from_file: bool = False
    """True for a rule of the file of alerts, which the page does not change."""


class AlertStore:
    """Rules, receivers and alerts."""

    def __init__(self, database: Database, *, clock: Clock, audit_log: AuditLog, has_mail: bool = False) -> None:
        """has_mail: whether a mail server is configured, without which no receiver of mail can be added."""
        self.database = database
        self.clock = clock
        self.has_mail = has_mail
        self._audit_log = audit_log
        self.changes = 0
        """Number of changes of rules in this process."""

    async def rules(self) -> list[Rule]:
        """All rules, by name."""
        return await self.database.read(_rules)

    async def rule(self, rule_id: int) -> Rule:
        """The rule with this id. Raises: NotFound."""
        return await self.database.read(lambda session: _rule(_row(session, rule_id)))

    async def receiver(self, receiver_id: int) -> AlertReceiver:
        """The receiver with this id. Raises: NotFound."""
        return await self.database.read(lambda session: _receiver(session, receiver_id))

    async def receivers(self) -> Sequence[AlertReceiver]:
        """All receivers, by name."""
        query = select(AlertReceiver).order_by(AlertReceiver.name)
        return await self.database.read(lambda session: session.exec(query).all())

    async def alerts(self, *, run: str = "", limit: int = 100, since: float = 0.0) -> Sequence[Alert]:
        """Alerts that fire, then those that were resolved, newest first. since: time from which on they ended."""
        query = select(Alert).where((col(Alert.ended_at) >= since) | col(Alert.ended_at).is_(None))
        query = query.where(Alert.run == run) if run else query
        query = query.order_by(col(Alert.ended_at).is_(None).desc(), col(Alert.began_at).desc(), col(Alert.id).desc())
        return await self.database.read(lambda session: session.exec(query.limit(limit)).all())

    async def alert(self, alert_id: int) -> Alert | None:
        """The alert with this id; None for an unknown or an old one."""
        return await self.database.read(lambda session: session.get(Alert, alert_id))

    async def save(self, spec: RuleSpec, *, rule_id: int | None = None, by: Author, reason: str = "") -> int:
        """Creates a rule, or replaces that with the id, whose alert is resolved; returns the id. The rule is evaluated
        from now on.

        Raises: NotFound; Conflict for a name of another rule, a rule of the file, and too many rules; InvalidInput for
        an unknown receiver.
        """

        def write(session: Session) -> int:
            _check_receivers(session, spec)
            if rule_id is None:
                row = AlertRule(name="", spec_json="", created_by=by.name, changed_at=0.0)
            else:
                row = _own_row(session, rule_id)
            before, old_name = ({}, spec.name) if rule_id is None else (_facts(_rule(row).spec), row.name)
            if spec.name != row.name:
                _check_name(session, spec.name)
            if rule_id is None and session.exec(select(func.count()).select_from(AlertRule)).one() >= MAX_RULES:
                raise Conflict(
                    f"cannot create the alert rule {spec.name!r}: {MAX_RULES} rules exist; delete one first",
                    code="alert.too_many_rules",
                )
            row.name, row.spec_json, row.changed_at = spec.name, spec.model_dump_json(), self.clock.wall()
            session.add(row)
            session.flush()
            action = "alert.create" if rule_id is None else "alert.change"
            self._append(session, by, action, old_name, before=before, after=_facts(spec), reason=reason)
            return row.id or 0

        return await self._change(write)

    async def mute(self, rule_id: int, *, minutes: float, by: Author, reason: str = "") -> str:
        """Mutes the notices of a rule for a time, 0 ends it; returns a sentence. Raises: NotFound, InvalidInput."""
        if not 0.0 <= minutes * 60.0 <= MAX_MUTE_S:
            most = MAX_MUTE_S / 60.0
            raise InvalidInput(
                f"cannot mute the alert rule for {minutes:g} minutes: out of range; use 0 to {most:.0f}",
                code="alert.invalid_mute",
            )

        def write(session: Session) -> str:
            row = _row(session, rule_id)
            row.muted_until = self.clock.wall() + 60.0 * minutes if minutes else 0.0
            self._append(session, by, "alert.mute", row.name, after={"minutes": minutes}, reason=reason)
            return f"{row.name} is muted for {minutes:g} minutes" if minutes else f"{row.name} is no longer muted"

        return await self._change(write)

    async def delete(self, rule_id: int, *, by: Author, reason: str = "") -> str:
        """Deletes a rule; returns a sentence. Its alert is resolved without a notice. Raises: NotFound, Conflict."""

        def write(session: Session) -> str:
            row = _own_row(session, rule_id)
            before = _facts(_rule(row).spec)
            session.delete(row)
            self._append(session, by, "alert.delete", row.name, before=before, reason=reason)
            return f"alert rule {row.name} deleted"

        return await self._change(write)

    async def add_receiver(self, spec: ReceiverSpec, *, by: Author, reason: str = "") -> tuple[int, str]:
        """Adds a receiver; returns its id and the key that signs its notices, which is never shown again.

        Raises: Conflict for a name that exists, or with too many receivers; InvalidInput for mail without a server.
        """
        if spec.kind is ReceiverKind.MAIL and not self.has_mail:
            raise InvalidInput(
                "cannot add a receiver of mail: the page has no mail server; start it with --mail FILE",
                code="alert.no_mail_server",
            )

        def write(session: Session) -> AlertReceiver:
            if session.exec(select(AlertReceiver).where(AlertReceiver.name == spec.name)).first() is not None:
                raise Conflict(
                    f"cannot add the receiver {spec.name!r}: it exists already; choose another name",
                    code="alert.receiver_exists",
                )
            if session.exec(select(func.count()).select_from(AlertReceiver)).one() >= MAX_RECEIVERS:
                raise Conflict(
                    f"cannot add the receiver {spec.name!r}: {MAX_RECEIVERS} receivers exist; delete one first",
                    code="alert.too_many_receivers",
                )
            row = AlertReceiver(
                name=spec.name,
                kind=spec.kind.value,
                target=spec.target,
                salt=secrets.token_hex(16),
                allows_private=spec.allows_private,
                created_by=by.name,
                created_at=self.clock.wall(),
            )
            session.add(row)
            session.flush()
            facts: Facts = {"kind": spec.kind.value, "target": public_target(row), "private": spec.allows_private}
            self._append(session, by, "alert.receiver_add", spec.name, after=facts, reason=reason)
            return row

        row = await self._change(write)
        return row.id or 0, signing_key(self.database.secret, row.salt)

    async def delete_receiver(self, receiver_id: int, *, by: Author, reason: str = "") -> str:
        """Deletes a receiver with its waiting notices; returns a sentence. Raises: NotFound; Conflict while a rule
        notifies it."""

        def write(session: Session) -> str:
            row = _receiver(session, receiver_id)
            users = [rule.spec.name for rule in _rules(session) if row.name in rule.spec.receivers]
            if users:
                raise Conflict(
                    f"cannot delete the receiver {row.name!r}: the rule {users[0]!r} notifies it; change "
                    "that rule first",
                    code="alert.receiver_used",
                )
            session.exec(delete(AlertDelivery).where(col(AlertDelivery.receiver_id) == receiver_id))
            session.delete(row)
            self._append(session, by, "alert.receiver_delete", row.name, reason=reason)
            return f"receiver {row.name} deleted"

        return await self._change(write)

    async def replace_file_rules(self, specs: Sequence[RuleSpec]) -> None:
        """Makes the rules of the file those of the database. Raises: InvalidInput for an unknown receiver, Conflict
        for a name of another rule."""

        def write(session: Session) -> None:
            rows = {row.name: row for row in session.exec(select(AlertRule)).all()}
            for row in rows.values():
                if row.is_from_file and row.name not in {spec.name for spec in specs}:
                    session.delete(row)
            for spec in specs:
                _check_receivers(session, spec)
                known = rows.get(spec.name)
                if known is not None and not known.is_from_file:
                    _check_name(session, spec.name)
                if known is None or known.spec_json != spec.model_dump_json():
                    self._put_file_rule(session, spec, known)

        await self._change(write)

    def _put_file_rule(self, session: Session, spec: RuleSpec, row: AlertRule | None) -> None:
        if row is None:
            row = AlertRule(name=spec.name, spec_json="", is_from_file=True, created_by="", changed_at=0.0)
        row.spec_json, row.changed_at = spec.model_dump_json(), self.clock.wall()
        session.add(row)
        self._append(session, FILE_AUTHOR, "alert.file", spec.name, after=_facts(spec))

    async def _change(self, write: Callable[[Session], T]) -> T:
        result = await self.database.write(write)
        self.changes += 1
        return result

    def _append(
        self,
        session: Session,
        by: Author,
        action: str,
        target: str,
        *,
        before: Facts | None = None,
        after: Facts | None = None,
        reason: str = "",
    ) -> None:
        command = AuditedCommand(action=action, target=target, before=before or {}, after=after or {}, reason=reason)
        self._audit_log.append(session, by, command)


def latest_alerts(session: Session, run: str) -> Sequence[Alert]:
    """Latest alerts of a run, oldest first."""
    query = select(Alert).where(Alert.run == run).order_by(col(Alert.id).desc()).limit(RUN_ALERTS)
    return session.exec(query).all()[::-1]


def prune_alerts(session: Session) -> None:
    """Deletes resolved alerts beyond those that are kept."""
    resolved = col(Alert.ended_at).is_not(None)
    oldest = select(Alert.id).where(resolved).order_by(col(Alert.id).desc()).offset(KEPT_ALERTS).limit(1)
    newest_dropped = session.exec(oldest).first()
    if newest_dropped is not None:
        session.exec(delete(Alert).where(resolved, col(Alert.id) <= newest_dropped))


def _facts(spec: RuleSpec) -> Facts:
    return {
        "run": spec.run,
        "series": f"{spec.series}:{spec.value}",
        "rule": spec.sentence,
        "severity": spec.severity.value,
        "receivers": ", ".join(spec.receivers),
    }


def _rules(session: Session) -> list[Rule]:
    return [_rule(row) for row in session.exec(select(AlertRule).order_by(AlertRule.name)).all()]


def _rule(row: AlertRule) -> Rule:
    return Rule(
        id=row.id or 0,
        spec=RuleSpec.parse(json.loads(row.spec_json), where=row.name),
        changed_at=row.changed_at,
        muted_until=row.muted_until,
        created_by=row.created_by,
        is_from_file=row.is_from_file,
    )


def _row(session: Session, rule_id: int) -> AlertRule:
    row = session.get(AlertRule, rule_id)
    if row is None:
        raise NotFound(
            f"cannot find the alert rule {rule_id}: it was deleted; reload the list of rules", code="alert.unknown_rule"
        )
    return row


def _own_row(session: Session, rule_id: int) -> AlertRule:
    row = _row(session, rule_id)
    if row.is_from_file:
        raise Conflict(
            f"cannot change the alert rule {row.name!r}: it is from the file of --alerts; change the file and restart "
            "the page, or mute the rule",
            code="alert.rule_of_file",
        )
    return row


def _receiver(session: Session, receiver_id: int) -> AlertReceiver:
    row = session.get(AlertReceiver, receiver_id)
    if row is None:
        raise NotFound(
            f"cannot find the receiver {receiver_id}: it was deleted; reload the page", code="alert.unknown_receiver"
        )
    return row


def _check_name(session: Session, name: str) -> None:
    if session.exec(select(AlertRule).where(AlertRule.name == name)).first() is not None:
        raise Conflict(
            f"cannot name the alert rule {name!r}: another rule has this name; choose another name",
            code="alert.rule_exists",
        )


def _check_receivers(session: Session, spec: RuleSpec) -> None:
    known = list(session.exec(select(AlertReceiver.name)).all())
    for name in spec.receivers:
        if name not in known:
            hint = suggest_name(name, known) if known else "an admin adds receivers on the page Alerts"
            raise InvalidInput(f"cannot notify {name!r}: unknown receiver; {hint}", code="alert.receiver_of_rule")
