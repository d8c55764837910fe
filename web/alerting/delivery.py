"""Delivers queued notices: grouped for each receiver, repeated until they arrive or are a day old.

Alerts that begin within a few seconds of each other, or while a receiver fails, are one notice; a receiver gets at most
one notice each half minute. That bounds every storm without losing an alert.
"""

import asyncio
import json
import ssl
from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, col, select

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from web.alerting.mail import MailSender
from web.alerting.notices import Notice, events_from_json
from web.alerting.receivers import ReceiverKind, signing_key
from web.alerting.webhook import post_notice
from web.database.db import Database
from web.database.tables import Alert, AlertDelivery, AlertReceiver

log = get_logger()

GROUP_WAIT_S = 3.0
"""Time for which a notice waits for further alerts, seconds."""
GROUP_INTERVAL_S = 30.0
"""Shortest time between two notices to a receiver, seconds."""
FIRST_RETRY_S = 2.0
MAX_RETRY_S = 300.0
KEEP_S = 86400.0
"""Age at which a notice that does not arrive is dropped, seconds."""
MAX_EVENTS = 1000
"""Events of one waiting notice; later ones are on the page only."""
POLL_S = 1.0

UNUSABLE_NOTICE = (400, 413, 415, 422)
"""Statuses that concern the notice itself, so that repeating it is useless."""


def enqueue(session: Session, receivers: Sequence[str], alert: Alert, state: str, *, now: float) -> int:
    """Queues an event of an alert for receivers, by name; returns the number of receivers."""
    rows = session.exec(select(AlertReceiver).where(col(AlertReceiver.name).in_(receivers))).all()
    for receiver in rows:
        waiting = select(AlertDelivery).where(AlertDelivery.receiver_id == receiver.id, AlertDelivery.attempts == 0)
        delivery = session.exec(waiting).first()
        if delivery is None:
            at = now + GROUP_WAIT_S
            delivery = AlertDelivery(receiver_id=receiver.id or 0, events_json="[]", created_at=now, next_at=at)
            session.add(delivery)
        events = json.loads(delivery.events_json)
        if len(events) < MAX_EVENTS:
            delivery.events_json = json.dumps([*events, [alert.id, state]])
    return len(rows)


class Deliverer:
    """Sends notices."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        address: str,
        mail: MailSender | None,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """address: of the page, for links. mail: None without a mail server. trust: certificates that webhooks are
        checked with; None for those of the system."""
        self._database = database
        self._clock = clock
        self._address = address
        self._mail = mail
        self._trust = trust

    async def run(self) -> None:
        """Sends due notices until cancelled."""
        while True:
            try:
                await self.send_due()
            except (DBAPIError, Unavailable) as problem:
                log.warning("alert_delivery_paused", problem=type(problem).__name__)
            await self._clock.sleep(POLL_S)

    async def send_due(self) -> None:
        """Sends the first notice of each receiver whose time has come."""
        due = await self._database.read(self._due)
        await asyncio.gather(*(self._deliver(*item) for item in due))

    async def send_test(self, receiver: AlertReceiver) -> str:
        """Sends a test notice now; returns a sentence. Raises: Unavailable, InvalidInput."""
        notice = Notice(id=0, events=(), at=self._clock.wall(), address=self._address)
        await self._send(receiver, notice)
        return f"{receiver.name} has the test notice"

    def _due(self, session: Session) -> list[tuple[AlertReceiver, AlertDelivery, Notice]]:
        now = self._clock.wall()
        due: dict[int, tuple[AlertReceiver, AlertDelivery, Notice]] = {}
        query = select(AlertDelivery, AlertReceiver).join(AlertReceiver).order_by(col(AlertDelivery.id))
        for delivery, receiver in session.exec(query):
            earliest = receiver.sent_at + GROUP_INTERVAL_S if delivery.attempts == 0 else 0.0
            if delivery.receiver_id not in due and max(delivery.next_at, earliest) <= now:
                ids = [alert_id for alert_id, _ in json.loads(delivery.events_json)]
                alerts = session.exec(select(Alert).where(col(Alert.id).in_(ids))).all()
                events = events_from_json(delivery.events_json, alerts)
                notice = Notice(id=delivery.id or 0, events=events, at=now, address=self._address)
                due[delivery.receiver_id] = receiver, delivery, notice
        return list(due.values())

    async def _deliver(self, receiver: AlertReceiver, delivery: AlertDelivery, notice: Notice) -> None:
        problem, retry_after_s = "", None
        try:
            if notice.events:
                await self._send(receiver, notice)
        except AstraFlowError as error:
            problem, retry_after_s = str(error), getattr(error, "retry_after_s", None)
            log.warning("alert_notice_failed", receiver=receiver.name, code=error.code, attempts=delivery.attempts + 1)
            is_hopeless = isinstance(error, InvalidInput)
        else:
            is_hopeless = False
        await self._database.write(
            lambda session: self._record(session, receiver, delivery, problem, retry_after_s, is_hopeless)
        )

    async def _send(self, receiver: AlertReceiver, notice: Notice) -> None:
        """Sends a notice. Raises: Unavailable when it may arrive later, InvalidInput when it never will."""
        if receiver.kind == ReceiverKind.MAIL.value:
            await self._send_mail(receiver, notice)
            return
        answer = await post_notice(
            receiver.target,
            notice.body(),
            key=signing_key(self._database.secret, receiver.salt),
            at=notice.at,
            allows_private=receiver.allows_private,
            trust=self._trust,
        )
        if answer.status in UNUSABLE_NOTICE:
            raise InvalidInput(
                f"cannot notify {receiver.name!r}: it refused the notice with status {answer.status}; check that it "
                "takes the documented JSON",
                code="alert.notice_refused",
            )
        if not 200 <= answer.status < 300:
            hint = "redirects are not followed" if 300 <= answer.status < 400 else "check its URL and its permissions"
            raise _Refused(
                f"cannot notify {receiver.name!r}: it answered with status {answer.status}; {hint}",
                retry_after_s=answer.retry_after_s,
            )

    async def _send_mail(self, receiver: AlertReceiver, notice: Notice) -> None:
        if self._mail is None:
            raise Unavailable(
                f"cannot notify {receiver.name!r}: the page has no mail server; start it with --mail FILE",
                code="alert.mail_not_configured",
            )
        recipients = [address.strip() for address in receiver.target.split(",")]
        await asyncio.to_thread(self._mail.send, notice, recipients)

    def _record(
        self,
        session: Session,
        sent_to: AlertReceiver,
        delivery: AlertDelivery,
        problem: str,
        retry_after_s: float | None,
        is_hopeless: bool,
    ) -> None:
        now = self._clock.wall()
        receiver = session.get(AlertReceiver, sent_to.id)
        row = session.get(AlertDelivery, delivery.id)
        if receiver is None or row is None:
            return  # deleted meanwhile
        receiver.problem = problem
        if not problem:
            receiver.sent_at = now
        if not problem or is_hopeless or now - row.created_at > KEEP_S:
            _remove_sent(session, row, sent=delivery.events_json)
            return
        pause_s = min(FIRST_RETRY_S * 2.0**row.attempts, MAX_RETRY_S)
        row.attempts += 1
        row.next_at = now + min(max(pause_s, retry_after_s or 0.0), KEEP_S)


def _remove_sent(session: Session, row: AlertDelivery, *, sent: str) -> None:
    """Removes the events that were sent, and keeps those that were queued meanwhile."""
    rest = json.loads(row.events_json)[len(json.loads(sent)) :]
    if rest:
        row.events_json, row.attempts = json.dumps(rest), 0
    else:
        session.delete(row)


class _Refused(Unavailable):
    """Answer of a webhook that may change."""

    def __init__(self, message: str, *, retry_after_s: float | None) -> None:
        super().__init__(message, code="alert.webhook_refused")
        self.retry_after_s = retry_after_s
