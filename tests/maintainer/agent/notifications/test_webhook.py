"""Webhooks: retries, bounds, and no URL in logs."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
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
from maintainer.agent.notifications.webhook import Notifier, http_post, payload, webhook_url
from tests.fakes.clock import ManualClock

URL = "https://hooks.example.test/services/T0/B0/secret-path"
NOTICE = Notice(kind="escalation", severity="warning", title="quota <gone>", text="<!channel> & co", at=1.0)


class Hook:
    """Webhook with scripted answers."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)
        self.bodies: list[Mapping[str, Any]] = []

    async def post(self, url: str, body: Mapping[str, Any]) -> int:
        assert url == URL
        answer = self.answers.pop(0) if self.answers else 200
        if answer is None:
            raise OSError(f"cannot reach {url}")
        self.bodies.append(body)
        return answer


class Hasty(ManualClock):
    """Clock whose sleep returns immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)


def notifier(hook: Hook, clock: Hasty, *, outbox: NoticeQueue | None = None, **changes: Any) -> Notifier:
    config = NotifyConfig.parse(changes, where="")
    return Notifier(config, run="run-1", clock=clock, post=hook.post, url=URL, queue=outbox)


@pytest.mark.anyio
async def test_a_notice_is_retried_with_pauses_and_then_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    hook, clock = Hook(None, 503, 429, None, 500, None), Hasty()
    telling = notifier(hook, clock)
    await telling.enqueue(NOTICE)
    await telling.send_queued()
    assert (telling.sent, telling.dropped, clock.slept) == (0, 1, [1.0, 2.0, 4.0, 8.0])
    await telling.enqueue(NOTICE)
    hook.answers = [503, 200]
    await telling.send_queued()
    assert (telling.sent, telling.dropped) == (1, 1)
    assert "secret-path" not in "".join(capsys.readouterr())


@pytest.mark.anyio
async def test_a_permanent_refusal_is_not_retried() -> None:
    hook, clock = Hook(404), Hasty()
    telling = notifier(hook, clock)
    await telling.enqueue(NOTICE)
    await telling.send_queued()
    assert (telling.dropped, clock.slept) == (1, [])


@pytest.mark.anyio
async def test_queued_notices_are_sent_after_a_restart_under_the_same_id(tmp_path: Path) -> None:
    path, hook = tmp_path / "notices.json", Hook()
    first = notifier(hook, Hasty(), outbox=NoticeQueue(path, run="run-1"))
    await first.enqueue(NOTICE)
    await first.enqueue(replace(NOTICE, title="second"))
    second = notifier(hook, Hasty(), outbox=NoticeQueue(path, run="run-1"))
    await second.send_queued()
    assert [body["title"] for body in hook.bodies] == ["quota <gone>", "second"]
    assert len({body["id"] for body in hook.bodies}) == 2
    await notifier(hook, Hasty(), outbox=NoticeQueue(path, run="run-1")).send_queued()
    assert len(hook.bodies) == 2, "what has arrived is not sent again"
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.anyio
async def test_a_notice_whose_sending_is_cancelled_is_queued_again(tmp_path: Path) -> None:
    path, begun = tmp_path / "notices.json", asyncio.Event()

    async def never(url: str, body: Mapping[str, Any]) -> int:
        begun.set()
        await asyncio.Event().wait()
        return 200

    stuck = Notifier(
        NotifyConfig(), run="run-1", clock=Hasty(), post=never, url=URL, queue=NoticeQueue(path, run="run-1")
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
    telling = notifier(Hook(404), Hasty(), outbox=NoticeQueue(path, run="run-1"))
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

    async def hook(self, request: Request) -> Response:
        """Handles `POST /hook/secret-path`."""
        assert request.headers["content-type"] == "application/json"
        self.got.append(json.loads(await request.body()))
        status = self.answers.pop(0) if self.answers else 200
        if status == 0:
            await asyncio.sleep(3600)  # until the client disconnects
        return Response(status_code=status, headers={"location": "/elsewhere"} if status in (302, 307) else {})

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


def over_http(receiver: Receiver, clock: Hasty, **changes: Any) -> Notifier:
    config = NotifyConfig.parse(changes, where="")
    return Notifier(config, run="run-1", clock=clock, post=http_post(), url=receiver.url)


@pytest.mark.anyio
async def test_a_generic_webhook_gets_an_object_and_slack_gets_a_text() -> None:
    async with receiving() as receiver:
        for kind in ("generic", "slack"):
            telling = over_http(receiver, Hasty(), kind=kind)
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


@pytest.mark.anyio
async def test_a_500_is_retried_and_a_redirect_is_not_followed() -> None:
    async with receiving(500, 302, 200) as receiver:
        clock = Hasty()
        telling = over_http(receiver, clock)
        await telling.enqueue(NOTICE)
        await telling.send_queued()
        assert (telling.sent, telling.dropped, len(receiver.got), clock.slept) == (1, 0, 3, [1.0, 2.0])
        assert len({notification["id"] for notification in receiver.got}) == 1
    async with receiving(307, 307) as receiver:
        telling = over_http(receiver, Hasty(), max_attempts=2)
        await telling.enqueue(NOTICE)
        await telling.send_queued()
        assert (telling.dropped, len(receiver.got), receiver.wandered) == (1, 2, 0)


@pytest.mark.anyio
async def test_a_request_without_an_answer_is_retried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webhook, "POST_TIMEOUT_S", 0.5)
    async with receiving(0, 0) as receiver:
        clock = Hasty()
        telling = over_http(receiver, clock, max_attempts=2)
        await telling.enqueue(NOTICE)
        await telling.send_queued()
        assert (telling.sent, telling.dropped, clock.slept) == (0, 1, [1.0])
    unreachable_hook = over_http(receiver, Hasty(), max_attempts=2)  # the server has stopped
    await unreachable_hook.enqueue(NOTICE)
    await unreachable_hook.send_queued()
    assert (unreachable_hook.sent, unreachable_hook.dropped) == (0, 1)
    output = "".join(capsys.readouterr())
    assert "webhook_unreachable" in output
    assert "secret-path" not in output


@pytest.mark.anyio
async def test_a_full_queue_drops_the_oldest_notices() -> None:
    hook, clock = Hook(), Hasty()
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
