"""Webhooks: retries, bounds, and no URL in logs."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.runtime.http.server import listening, serving_http, url_of
from maintainer.agent.config import NotifyConfig
from maintainer.agent.notifications import webhook
from maintainer.agent.notifications.notice_queue import Notice, NoticeQueue
from maintainer.agent.notifications.webhook import Answer, Notifier, http_post, payload, wait_s, webhook_url
from tests.fakes.clock import ManualClock

URL = "https://hooks.example.test/services/T0/B0/secret-path"
NOTICE = Notice(kind="escalation", severity="warning", title="quota <gone>", text="<!channel> & co", at=1.0)


class Hook:
    """Webhook with scripted answers."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)
        self.bodies: list[Mapping[str, Any]] = []

    async def post(self, url: str, body: Mapping[str, Any]) -> Answer:
        assert url == URL
        answer = self.answers.pop(0) if self.answers else 200
        if answer is None:
            raise OSError(f"cannot reach {url}")
        self.bodies.append(body)
        return Answer(status=answer)


async def pauses_until_sent(telling: Notifier, clock: ManualClock) -> list[float]:
    """Calls the notifier each time its pause is over, until its queue is empty; returns the pauses."""
    pauses: list[float] = []
    await telling.send_queued()
    while telling.queue.waiting:
        pauses.append(telling.queue.next_attempt_at - clock.wall())
        clock.advance(pauses[-1] - 0.01)
        before = telling.queue.waiting[0]
        await telling.send_queued()
        assert telling.queue.waiting[0] == before, "nothing is sent before the pause is over"
        clock.advance(0.01)
        await telling.send_queued()
    return [round(pause) for pause in pauses]


def notifier(hook: Hook, clock: ManualClock, *, outbox: NoticeQueue | None = None, **changes: Any) -> Notifier:
    config = NotifyConfig.parse(changes, where="")
    return Notifier(config, run="run-1", clock=clock, post=hook.post, url=URL, queue=outbox)


@pytest.mark.anyio
async def test_a_notice_is_retried_with_pauses_until_it_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    hook, clock = Hook(None, 503, 429, None, 404, 403, 401, 500, 410, None), ManualClock()
    telling = notifier(hook, clock)
    await telling.enqueue(NOTICE)
    await telling.enqueue(replace(NOTICE, title="second"))
    assert await pauses_until_sent(telling, clock) == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert (telling.sent, telling.dropped) == (2, 0)
    assert [body["title"] for body in hook.bodies[-2:]] == ["quota <gone>", "second"]
    hook.answers = [503]
    await telling.enqueue(NOTICE)
    assert await pauses_until_sent(telling, clock) == [1], "a success ends the long pauses"
    assert "secret-path" not in "".join(capsys.readouterr())


@pytest.mark.anyio
async def test_a_notice_is_dropped_when_it_is_too_old_and_the_later_one_is_sent() -> None:
    hook, clock = Hook(), ManualClock()
    telling = notifier(hook, clock, keep_hours=6.0)
    await telling.enqueue(NOTICE)
    clock.advance(3 * 3600.0)
    await telling.enqueue(replace(NOTICE, title="second"))
    clock.advance(3 * 3600.0 + 1.0)
    await telling.send_queued()
    assert ([body["title"] for body in hook.bodies], telling.dropped) == (["second"], 1)


@pytest.mark.anyio
@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_a_notice_that_the_receiver_cannot_use_is_dropped_at_once(status: int) -> None:
    hook, clock = Hook(status), ManualClock()
    telling = notifier(hook, clock)
    await telling.enqueue(NOTICE)
    await telling.enqueue(replace(NOTICE, title="second"))
    await telling.send_queued()
    assert (telling.sent, telling.dropped) == (1, 1)


@pytest.mark.parametrize(
    ("header", "expected_s"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 1.0),
        ("9" * 400, float("inf")),
        ("Thu, 01 Jan 1970 00:18:40 GMT", 120.0),
        ("Thursday, 01-Jan-70 00:18:40 GMT", 120.0),
        ("Thu Jan  1 00:18:40 1970", 120.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 1.0),
        ("-5", None),
        ("1.5", None),
        ("\u0661", None),
        ("", None),
        ("soon", None),
        ("Thu, 99 Jan 1970 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_anything_else_is_ignored(header: str, expected_s: float | None) -> None:
    assert wait_s(header, now=1000.0) == expected_s


@pytest.mark.anyio
async def test_alarms_arrive_in_order_after_an_outage_of_hours_and_a_restart(tmp_path: Path) -> None:
    path, clock = tmp_path / "notices.json", ManualClock()
    async with receiving(*(503 for _ in range(3))) as receiver:
        receiver.retry_after = "7200"

        def started() -> Notifier:
            queue = NoticeQueue(path, run="run-1")
            return Notifier(NotifyConfig(), run="run-1", clock=clock, post=http_post(), url=receiver.url, queue=queue)

        first = started()
        for number in range(3):
            await first.enqueue(replace(NOTICE, title=f"alarm {number}"))
        await first.send_queued()
        for _ in range(5):
            clock.advance(1000.0)
            await first.send_queued()
        assert (len(receiver.got), first.delayed) == (1, 3), "two hours are not over"
        second = started()  # the process has restarted
        await second.send_queued()
        assert len(receiver.got) == 1, "nor after a restart"
        clock.advance(2200.0)
        await second.send_queued()
        assert len(receiver.got) == 2
        receiver.retry_after = formatdate(clock.wall(), usegmt=True)
        clock.advance(7200.0)
        assert await pauses_until_sent(second, clock) == [1], "the date is over"
        assert (second.sent, second.dropped, second.delayed) == (3, 0, 0)
        titles = [body["title"] for body in receiver.got]
        assert titles == ["alarm 0"] * 4 + ["alarm 1", "alarm 2"]
        assert len({body["id"] for body in receiver.got}) == 3
    assert not NoticeQueue(path, run="run-1").waiting


@pytest.mark.anyio
async def test_a_date_in_retry_after_is_waited_for_but_not_longer_than_notices_are_kept() -> None:
    clock = ManualClock()
    async with receiving(429, 503) as receiver:
        telling = over_http(receiver, clock)
        receiver.retry_after = formatdate(clock.wall() + 600.0, usegmt=True)
        await telling.enqueue(NOTICE)
        await telling.send_queued()
        assert telling.queue.next_attempt_at == clock.wall() + 600.0
        receiver.retry_after = "31536000"
        clock.advance(600.0)
        await telling.send_queued()
        assert telling.queue.next_attempt_at == clock.wall() + 24 * 3600.0
        clock.advance(-3600.0)  # a clock that was put back does not silence alarms for longer
        await telling.send_queued()
        assert (telling.sent, len(receiver.got)) == (1, 3)


@pytest.mark.anyio
async def test_queued_notices_are_sent_after_a_restart_under_the_same_id(tmp_path: Path) -> None:
    path, hook = tmp_path / "notices.json", Hook()
    first = notifier(hook, ManualClock(), outbox=NoticeQueue(path, run="run-1"))
    await first.enqueue(NOTICE)
    await first.enqueue(replace(NOTICE, title="second"))
    second = notifier(hook, ManualClock(), outbox=NoticeQueue(path, run="run-1"))
    await second.send_queued()
    assert [body["title"] for body in hook.bodies] == ["quota <gone>", "second"]
    assert len({body["id"] for body in hook.bodies}) == 2
    await notifier(hook, ManualClock(), outbox=NoticeQueue(path, run="run-1")).send_queued()
    assert len(hook.bodies) == 2, "what has arrived is not sent again"
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.anyio
async def test_a_notice_whose_sending_is_cancelled_is_queued_again(tmp_path: Path) -> None:
    path, begun = tmp_path / "notices.json", asyncio.Event()

    async def never(url: str, body: Mapping[str, Any]) -> Answer:
        begun.set()
        await asyncio.Event().wait()
        return Answer(status=200)

    stuck = Notifier(
        NotifyConfig(), run="run-1", clock=ManualClock(), post=never, url=URL, queue=NoticeQueue(path, run="run-1")
    )
    await stuck.enqueue(NOTICE)
    pushing = asyncio.create_task(stuck.send_queued())
    await begun.wait()
    await stuck.enqueue(replace(NOTICE, title="second"))
    assert [notice.title for notice in NoticeQueue(path, run="run-1").waiting] == ["quota <gone>", "second"], (
        "kill -9 loses none"
    )
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pushing
    assert [notice.title for notice in stuck.queue.waiting] == ["quota <gone>", "second"]


@pytest.mark.anyio
async def test_dropped_notices_are_counted_over_restarts_per_run(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    telling = notifier(Hook(400), ManualClock(), outbox=NoticeQueue(path, run="run-1"))
    await telling.enqueue(NOTICE)
    await telling.send_queued()
    await telling.enqueue(NOTICE)
    await telling.enqueue_journal([], cursor=7)
    assert (NoticeQueue(path, run="run-1").cursor, NoticeQueue(path, run="run-1").dropped) == (7, 1)
    other = NoticeQueue(path, run="run-2")
    assert (other.cursor, other.dropped, [notice.run for notice in other.waiting]) == (None, 1, ["run-1"])


def test_an_invalid_queue_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    for wrong in ("", "[]", '{"waiting": [{"x": 1}]}', '{"waiting": 3}'):
        path.write_text(wrong)
        with pytest.raises(CorruptData, check=lambda problem: problem.code == "maintainer.notices_corrupt"):
            NoticeQueue(path, run="run-1")


class Receiver:
    """HTTP webhook with scripted answers, which records its requests."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.got: list[dict[str, Any]] = []
        self.wandered = 0
        """Requests that followed a redirect."""
        self.url = ""
        self.retry_after = ""
        """Header of answers that are not 200."""

    async def hook(self, request: Request) -> Response:
        """Handles `POST /hook/secret-path`."""
        assert request.headers["content-type"] == "application/json"
        self.got.append(json.loads(await request.body()))
        status = self.answers.pop(0) if self.answers else 200
        if status == 0:
            await asyncio.sleep(3600)  # until the client disconnects
        headers = {"location": "/elsewhere"} if status in (302, 307) else {}
        if status != 200 and self.retry_after:
            headers["retry-after"] = self.retry_after
        return Response(status_code=status, headers=headers)

    async def elsewhere(self, request: Request) -> Response:
        """Handles the redirect target."""
        self.wandered += 1
        return Response()


@asynccontextmanager
async def receiving(*answers: int) -> AsyncIterator[Receiver]:
    """Serves on a free port until the block ends."""
    receiver = Receiver(*answers)
    everything = ["GET", "POST"]
    routes = [
        Route("/hook/secret-path", receiver.hook, methods=["POST"]),
        Route("/elsewhere", receiver.elsewhere, methods=everything),
    ]
    with listening("127.0.0.1", 0) as listener:
        async with serving_http(Starlette(routes=routes), listener):
            receiver.url = url_of(listener, "127.0.0.1") + "/hook/secret-path"
            yield receiver


def over_http(receiver: Receiver, clock: ManualClock, **changes: Any) -> Notifier:
    config = NotifyConfig.parse(changes, where="")
    return Notifier(config, run="run-1", clock=clock, post=http_post(), url=receiver.url)


@pytest.mark.anyio
async def test_a_generic_webhook_gets_an_object_and_slack_gets_a_text() -> None:
    async with receiving() as receiver:
        for kind in ("generic", "slack"):
            telling = over_http(receiver, ManualClock(), kind=kind)
            await telling.enqueue(NOTICE)
            await telling.send_queued()
            assert (telling.sent, telling.dropped) == (1, 0)
        generic, slack = receiver.got
        assert generic == {
            "source": "astraflow.maintainer",
            "id": "run-1:notice-1",
            "run": "run-1",
            "kind": "escalation",
            "severity": "warning",
            "title": "quota <gone>",
            "text": "<!channel> & co",
            "at": 1.0,
            "facts": {},
        }
        assert slack == {"text": "*quota &lt;gone&gt;* (run-1)\n&lt;!channel&gt; &amp; co", "unfurl_links": False}


@pytest.mark.long
@pytest.mark.anyio
async def test_a_500_is_retried_and_a_redirect_is_not_followed() -> None:
    async with receiving(500, 302, 307, 200) as receiver:
        clock = ManualClock()
        telling = over_http(receiver, clock)
        await telling.enqueue(NOTICE)
        assert await pauses_until_sent(telling, clock) == [1, 2, 4]
        assert (telling.sent, telling.dropped, len(receiver.got), receiver.wandered) == (1, 0, 4, 0)
        assert len({notification["id"] for notification in receiver.got}) == 1


@pytest.mark.anyio
async def test_a_request_without_an_answer_is_retried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webhook, "POST_TIMEOUT_S", 0.5)
    clock = ManualClock()
    async with receiving(0) as receiver:
        telling = over_http(receiver, clock)
        await telling.enqueue(NOTICE)
        assert await pauses_until_sent(telling, clock) == [1]
        assert (telling.sent, telling.dropped) == (1, 0)
    await telling.enqueue(NOTICE)  # the server has stopped
    await telling.send_queued()
    assert (telling.sent, telling.dropped, len(telling.queue.waiting)) == (1, 0, 1)
    output = "".join(capsys.readouterr())
    assert "webhook_unreachable" in output
    assert "secret-path" not in output


@pytest.mark.anyio
async def test_a_full_queue_drops_the_oldest_notices() -> None:
    hook, clock = Hook(), ManualClock()
    telling = notifier(hook, clock, max_queued=2)
    for number in range(5):
        await telling.enqueue(Notice(kind="digest", severity="info", title=str(number), text="", at=0.0))
    await telling.send_queued()
    assert ([body["title"] for body in hook.bodies], telling.dropped) == (["3", "4"], 3)


def test_text_for_slack_mentions_no_channel_or_user() -> None:
    text = payload(replace(NOTICE, run="run-1"), kind="slack")["text"]
    assert "<" not in text
    assert "&lt;!channel&gt;" in text
    assert "&amp;" in text


def test_a_generic_hook_gets_fields() -> None:
    body = payload(replace(NOTICE, run="run-1"), kind="generic")
    assert (body["kind"], body["severity"], body["run"]) == ("escalation", "warning", "run-1")


def test_the_address_is_read_from_the_environment_and_never_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = NotifyConfig(url_variable="HOOK")
    monkeypatch.delenv("HOOK", raising=False)
    assert webhook_url(config) == ""
    monkeypatch.setenv("HOOK", URL)
    assert webhook_url(config) == URL
    (tmp_path / "url").write_text("ftp://user:secret@host\n")
    with pytest.raises(InvalidInput) as caught:
        webhook_url(NotifyConfig(url_file=str(tmp_path / "url")))
    assert "secret" not in str(caught.value)
