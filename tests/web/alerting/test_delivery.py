"""Delivery of notices to real servers on loopback: signatures, retries, groups, guarded addresses, and mail."""

import asyncio
import email
import email.policy
import hashlib
import hmac
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session, select

from astraflow.access.authority import Authority
from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from tests.fakes.receivers import MailServer, WebhookServer
from tests.fakes.web import AdvancedClock
from web.alerting import webhook
from web.alerting.delivery import Deliverer, enqueue
from web.alerting.mail import MailConfig, MailSender, message_of
from web.alerting.notices import FIRING, RESOLVED, SCHEMA, Notice
from web.alerting.receivers import ReceiverSpec
from web.alerting.rules import RuleSpec
from web.alerting.store import AlertStore
from web.alerting.webhook import checked_address, post_notice, signature
from web.database.db import Database
from web.database.tables import Alert, AlertDelivery, AuditEntry
from web.security.audit_log import AuditLog, Author

pytestmark = pytest.mark.anyio

ADA = Author(name="ada", role="admin", via="session", came_from="127.0.0.1")
ADDRESS = "https://page.example.org"


@pytest.fixture
def clock() -> AdvancedClock:
    return AdvancedClock()


@pytest.fixture
def store(database: Database, clock: AdvancedClock) -> AlertStore:
    return AlertStore(database, clock=clock, audit_log=AuditLog(database, clock=clock), has_mail=True)


def alert(**fields: Any) -> Alert:
    usual = {"rule_id": 1, "rule_name": "Low", "run": "r", "severity": "critical", "series": "policy/p"}
    more = {"series_value": "reward", "text": "0.1 at p", "number": 0.1, "subjects": 1, "began_at": 1000.0}
    return Alert(**{**usual, **more, **fields})


async def queue(store: AlertStore, *events: tuple[Alert, str], to: str = "hook") -> None:
    """Queues events of alerts, which it stores."""

    def write(session: Session) -> None:
        for row, state in events:
            session.add(row)
            session.flush()
            assert enqueue(session, [to], row, state, now=store.clock.wall()) == 1

    await store.database.write(write)


async def add_hook(store: AlertStore, url: str) -> tuple[int, str]:
    spec = ReceiverSpec.parse({"name": "hook", "kind": "webhook", "target": url, "allows_private": True}, where="")
    return await store.add_receiver(spec, by=ADA)


async def waiting(store: AlertStore) -> list[tuple[int, float]]:
    """Returns the failed attempts and the time until the next one, of each waiting notice."""
    rows = await store.database.read(lambda session: session.exec(select(AlertDelivery)).all())
    return [(row.attempts, round(row.next_at - store.clock.wall())) for row in rows]


async def test_alerts_of_a_burst_are_one_signed_notice_that_is_repeated_until_it_arrives(
    store: AlertStore, clock: AdvancedClock
) -> None:
    deliverer = Deliverer(store.database, clock=clock, address=ADDRESS, mail=None)
    async with WebhookServer([503, 429, 200], headers="Retry-After: 40\r\n").serving() as server:
        number, key = await add_hook(store, server.url)
        ended = alert(run="<b>&", ended_at=1100.0, ended_because="the condition no longer holds", is_notified=True)
        await queue(store, (alert(), FIRING), (ended, RESOLVED))
        await deliverer.send_due()
        assert server.requests == []  # it waits for further alerts
        for due_in_s in (4.0, 41.0, 41.0):
            clock.push(due_in_s)
            await deliverer.send_due()
        assert await waiting(store) == []
    bodies = [json.loads(body) for _, body in server.requests]
    assert [body["id"] for body in bodies] == [bodies[0]["id"]] * 3
    headers, raw = server.requests[-1]
    expected = hmac.new(key.encode(), headers["x-astraflow-time"].encode() + b"." + raw, hashlib.sha256).hexdigest()
    assert headers["x-astraflow-signature"] == f"sha256={expected}" == signature(key, headers["x-astraflow-time"], raw)
    assert headers["content-type"] == "application/json"
    body = bodies[-1]
    assert (body["schema"], body["event"], body["more"]) == (SCHEMA, "firing", 0)
    assert [entry["state"] for entry in body["alerts"]] == ["firing", "resolved"]
    assert body["alerts"][0]["url"] == f"{ADDRESS}/alerts/1"
    assert "&lt;b&gt;&amp;" in body["text"]
    assert "<b>" not in body["text"]
    receiver = await store.receiver(number)
    assert (receiver.problem, receiver.sent_at > 0) == ("", True)


async def test_a_failing_receiver_gets_one_notice_with_what_happened_meanwhile_at_most_each_half_minute(
    store: AlertStore, clock: AdvancedClock
) -> None:
    deliverer = Deliverer(store.database, clock=clock, address=ADDRESS, mail=None)
    async with WebhookServer([404, 200]).serving() as server:
        number, _ = await add_hook(store, server.url)
        await queue(store, (alert(), FIRING))
        clock.push(4.0)
        await deliverer.send_due()
        assert [attempts for attempts, _ in await waiting(store)] == [1]
        assert "404" in (await store.receiver(number)).problem
        assert "secret-path" not in (await store.receiver(number)).problem
        for _ in range(120):
            await queue(store, (alert(), FIRING))
        assert len(await waiting(store)) == 2
        clock.push(4.0)
        await deliverer.send_due()
        await queue(store, (alert(), FIRING))
        for due_in_s, sent in ((4.0, 2), (25.0, 2), (2.0, 3)):
            clock.push(due_in_s)
            await deliverer.send_due()
            assert len(server.requests) == sent
        assert await waiting(store) == []
    notices = [json.loads(body) for _, body in server.requests]
    assert [(len(notice["alerts"]), notice["more"]) for notice in notices] == [(1, 0), (1, 0), (50, 71)]


async def test_an_alert_that_begins_while_its_receiver_is_notified_is_sent_with_the_next_notice(
    store: AlertStore, clock: AdvancedClock
) -> None:
    deliverer = Deliverer(store.database, clock=clock, address=ADDRESS, mail=None)
    server = WebhookServer([200], is_silent=True)
    async with server.serving():
        await add_hook(store, server.url)
        await queue(store, (alert(), FIRING))
        clock.push(4.0)
        sending = asyncio.create_task(deliverer.send_due())
        await server.arrived.wait()
        await queue(store, (alert(rule_name="Other"), FIRING))
        server.is_silent = False
        server.goes_on.set()
        await sending
        clock.push(31.0)
        await deliverer.send_due()
    names = [[entry["rule"]["name"] for entry in json.loads(body)["alerts"]] for _, body in server.requests]
    assert names == [["Low"], ["Other"]]


async def test_a_refused_notice_and_one_of_yesterday_are_dropped(store: AlertStore, clock: AdvancedClock) -> None:
    deliverer = Deliverer(store.database, clock=clock, address=ADDRESS, mail=None)
    async with WebhookServer([422, 500]).serving() as server:
        number, _ = await add_hook(store, server.url)
        await queue(store, (alert(), FIRING))
        clock.push(4.0)
        await deliverer.send_due()
        assert (await waiting(store), "422" in (await store.receiver(number)).problem) == ([], True)
        await queue(store, (alert(), FIRING))
        clock.push(90_000.0)
        await deliverer.send_due()
        assert await waiting(store) == []


async def test_redirects_are_not_followed(store: AlertStore, clock: AdvancedClock) -> None:
    deliverer = Deliverer(store.database, clock=clock, address=ADDRESS, mail=None)
    async with (
        WebhookServer([200]).serving() as elsewhere,
        WebhookServer([307], headers=f"Location: {elsewhere.url}\r\n").serving() as server,
    ):
        number, _ = await add_hook(store, server.url)
        with pytest.raises(Unavailable) as problem:
            await deliverer.send_test(await store.receiver(number))
        assert problem.value.code == "alert.webhook_refused"
        assert (len(server.requests), elsewhere.requests) == (1, [])


@pytest.mark.parametrize(
    "host",
    [
        *[
            "127.0.0.1",
            "localhost",
            "10.0.0.7",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",  # noqa: S104 (refused)
            "::1",
            "fe80::1",
            "fd00::1",
        ],
        *["::ffff:127.0.0.1", "2002:7f00:1::", "100.64.0.1", "224.0.0.1", "0177.0.0.1", "2130706433"],
    ],
)
async def test_addresses_that_are_not_public_are_refused(host: str) -> None:
    with pytest.raises((Unavailable, OSError)):
        await checked_address(host, 443, allows_private=False)


async def test_a_name_is_refused_if_one_of_its_addresses_is_private_and_nothing_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolved(*_: Any, **__: Any) -> list[Any]:
        return [(2, 1, 6, "", (address, 443)) for address in ("93.184.216.34", "127.0.0.1")]

    async def no_connection(*_: Any, **__: Any) -> Any:
        raise AssertionError("connected")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    monkeypatch.setattr(asyncio, "open_connection", no_connection)
    with pytest.raises(Unavailable) as problem:
        await post_notice("https://hooks.example.org/x", b"{}", key="k", at=1.0, allows_private=False)
    assert problem.value.code == "alert.private_address"


async def test_a_silent_or_closed_webhook_is_an_outage_that_hides_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "POST_TIMEOUT_S", 0.05)
    server = WebhookServer([200], is_silent=True)
    async with server.serving():
        for url in (server.url, "http://localhost:1/secret-path", server.url.replace("http:", "https:")):
            with pytest.raises(Unavailable) as problem:
                await post_notice(url, b"{}", key="k", at=1.0, allows_private=True)
            assert problem.value.code == "alert.webhook_unreachable"
            assert "secret-path" not in str(problem.value)


@pytest.mark.parametrize(
    "target",
    [
        *[
            "http://hooks.example.org/x",
            "https://user:pw@hooks.example.org/x",
            "ftp://a/x",
            "https:///x",
            "",
            "https://a/b c",
        ],
        *["https://a:0/x", "https://a:99999/x", "https://é.example/x", "https://a/x\r\nHost: b"],
    ],
)
def test_unusable_urls_are_refused(target: str) -> None:
    with pytest.raises(InvalidInput):
        ReceiverSpec.parse({"name": "hook", "kind": "webhook", "target": target}, where="")


async def test_receivers_are_unique_bounded_audited_without_secrets_and_kept_while_a_rule_uses_them(
    store: AlertStore,
) -> None:
    number, key = await add_hook(store, "http://localhost:9/secret-path")
    with pytest.raises(Conflict):
        await add_hook(store, "http://localhost:9/other")
    fields = {"name": "r", "series": "fleet", "value": "nodes", "condition": "below", "threshold": 1.0}
    with pytest.raises(InvalidInput):
        await store.save(RuleSpec.parse({**fields, "receivers": ["hok"]}, where=""), by=ADA)
    rule = await store.save(RuleSpec.parse({**fields, "receivers": ["hook"]}, where=""), by=ADA)
    with pytest.raises(Conflict) as problem:
        await store.delete_receiver(number, by=ADA)
    assert problem.value.code == "alert.receiver_used"
    await store.delete(rule, by=ADA)
    await queue(store, (alert(), FIRING))
    await store.delete_receiver(number, by=ADA)
    entries = await store.database.read(lambda session: session.exec(select(AuditEntry)).all())
    actions = ["alert.receiver_add", "alert.create", "alert.delete", "alert.receiver_delete"]
    assert [entry.action for entry in entries] == actions
    written = " ".join(entry.after + entry.before + entry.target for entry in entries)
    assert "secret-path" not in written
    assert key not in written


def mail_config(server: MailServer, **more: Any) -> MailConfig:
    fields = {"host": "localhost", "port": server.port, "sender": "astraflow@example.org", "user": server.user}
    return MailConfig.parse({**fields, **more}, where="")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """Context of a server on localhost, and the file of its authority."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority.create(folder / "authority", run="r")
    pair = authority.for_service("localhost")
    certificate, key, root = folder / "certificate.pem", folder / "key.pem", folder / "root.pem"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    root.write_bytes(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, root


async def test_a_webhook_over_tls_is_trusted_only_with_its_authority(tls: tuple[ssl.SSLContext, Path]) -> None:
    context, root = tls
    trust = ssl.create_default_context(cafile=root)
    async with WebhookServer([200]).serving(tls=context) as server:
        answer = await post_notice(server.url, b"{}", key="k", at=1.0, allows_private=True, trust=trust)
        assert answer.status == 200
        with pytest.raises(Unavailable) as problem:
            await post_notice(server.url, b"{}", key="k", at=1.0, allows_private=True)
        assert "certificate" in str(problem.value)


@pytest.mark.parametrize("encryption", ["starttls", "tls"])
async def test_a_mail_is_sent_encrypted_after_a_login(
    encryption: str, tls: tuple[ssl.SSLContext, Path], store: AlertStore, clock: AdvancedClock
) -> None:
    context, root = tls
    server = MailServer(tls=context)
    async with server.serving(is_tls_from_start=encryption == "tls"):
        config = mail_config(server, encryption=encryption, authority=root)
        sender = MailSender(config, password=server.password)
        deliverer = Deliverer(store.database, clock=clock, address=ADDRESS, mail=sender)
        spec = ReceiverSpec.parse({"name": "ops", "kind": "mail", "target": "a@b.org, c@d.org"}, where="")
        await store.add_receiver(spec, by=ADA)
        await queue(store, (alert(rule_name="Low\r\nBcc: x@y.org", text="a\r\n.\r\nQUIT"), FIRING), to="ops")
        clock.push(4.0)
        await deliverer.send_due()
    ((recipients, text),) = server.mails
    message = email.message_from_string(text, policy=email.policy.default)
    assert recipients == ["a@b.org", "c@d.org"]
    assert message["bcc"] is None
    assert message["subject"] == "[firing] critical: Low  Bcc: x@y.org in r"
    assert message["auto-submitted"] == "auto-generated"
    assert f"{ADDRESS}/alerts/1" in message.get_content()


async def test_failures_of_the_mail_server_name_their_cause_and_no_password(
    tls: tuple[ssl.SSLContext, Path],
) -> None:
    context, root = tls
    notice = Notice(id=1, events=(), at=1.0, address=ADDRESS)
    server = MailServer(tls=context, refuses="c@d.org")
    async with server.serving():
        encrypted = mail_config(server, authority=root)
        untrusted = mail_config(server)
        closed = mail_config(server, authority=root, port=1)
        for config, password, cause in (
            (encrypted, "wrong-password", "535"),
            (encrypted, server.password, "c@d.org"),
            (untrusted, server.password, "SSL"),
            (closed, server.password, "refused"),
        ):
            with pytest.raises(Unavailable) as problem:
                recipients = ["a@b.org", "c@d.org"]
                await asyncio.to_thread(MailSender(config, password=password).send, notice, recipients)
            assert cause in str(problem.value)
            assert password not in str(problem.value)


def test_a_mail_server_beyond_this_machine_needs_encryption_and_addresses_are_checked() -> None:
    fields = {"host": "mail.example.org", "sender": "a@b.org", "encryption": "none"}
    with pytest.raises(InvalidInput):
        MailConfig.parse(fields, where="")
    assert MailConfig.parse({**fields, "host": "127.0.0.1"}, where="").port == 587
    for target in ("a@b.org\nBcc: c@d.org", "a b@c.org", "a", "", "a@b.org," * 30 + "a@b.org", "a@b.org, <c@d.org>"):
        with pytest.raises(InvalidInput):
            ReceiverSpec.parse({"name": "ops", "kind": "mail", "target": target}, where="")


def test_a_header_with_a_line_break_is_refused_by_the_library() -> None:
    message = message_of(Notice(id=1, events=(), at=1.0, address=ADDRESS), ["a@b.org"], sender="c@d.org")
    with pytest.raises(ValueError, match="linefeed"):
        message["X-Other"] = "a\nBcc: b@c.org"
