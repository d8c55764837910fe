"""Webhooks: tried again, bounded, and silent about where they go."""

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
from astraflow.runtime.http import listening, serving_http, url_of
from maintainer import notifying
from maintainer.config import NotifyConfig
from maintainer.notifying import Notifier, address, http_post, payload
from maintainer.outbox import Notice, Outbox
from tests.fakes.clock import ManualClock

URL = "https://hooks.example.test/services/T0/B0/secret-path"
NOTICE = Notice(kind="escalation", severity="warning", title="quota <gone>", text="<!channel> & co", at=1.0)


class Hook:
    """Answers as it is told."""

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
    """Sleeping takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)


def notifier(hook: Hook, clock: Hasty, *, outbox: Outbox | None = None, **changes: Any) -> Notifier:
    config = NotifyConfig.parse(changes, where="")
    return Notifier(config, run="run-1", clock=clock, post=hook.post, url=URL, outbox=outbox)


@pytest.mark.anyio
async def test_it_is_tried_again_with_pauses_and_then_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    hook, clock = Hook(None, 503, 429, None, 500, None), Hasty()
    telling = notifier(hook, clock)
    await telling.tell(NOTICE)
    await telling.push()
    assert (telling.sent, telling.lost, clock.slept) == (0, 1, [1.0, 2.0, 4.0, 8.0])
    await telling.tell(NOTICE)
    hook.answers = [503, 200]
    await telling.push()
    assert (telling.sent, telling.lost) == (1, 1)
    assert "secret-path" not in "".join(capsys.readouterr())


@pytest.mark.anyio
async def test_what_is_refused_for_good_is_not_tried_again() -> None:
    hook, clock = Hook(404), Hasty()
    telling = notifier(hook, clock)
    await telling.tell(NOTICE)
    await telling.push()
    assert (telling.lost, clock.slept) == (1, [])


@pytest.mark.anyio
async def test_what_waits_is_sent_by_the_next_process_under_the_same_id(tmp_path: Path) -> None:
    path, hook = tmp_path / "notices.json", Hook()
    first = notifier(hook, Hasty(), outbox=Outbox(path, run="run-1"))
    await first.tell(NOTICE)
    await first.tell(replace(NOTICE, title="second"))
    second = notifier(hook, Hasty(), outbox=Outbox(path, run="run-1"))
    await second.push()
    assert [body["title"] for body in hook.bodies] == ["quota <gone>", "second"]
    assert len({body["id"] for body in hook.bodies}) == 2
    await notifier(hook, Hasty(), outbox=Outbox(path, run="run-1")).push()
    assert len(hook.bodies) == 2, "what has arrived is not sent again"
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.anyio
async def test_what_is_cut_short_while_it_is_sent_waits_again(tmp_path: Path) -> None:
    path, begun = tmp_path / "notices.json", asyncio.Event()

    async def never(url: str, body: Mapping[str, Any]) -> int:
        begun.set()
        await asyncio.Event().wait()
        return 200

    stuck = Notifier(NotifyConfig(), run="run-1", clock=Hasty(), post=never, url=URL, outbox=Outbox(path, run="run-1"))
    await stuck.tell(NOTICE)
    pushing = asyncio.create_task(stuck.push())
    await begun.wait()
    await stuck.tell(replace(NOTICE, title="second"))
    assert [one.title for one in Outbox(path, run="run-1").waiting] == ["quota <gone>", "second"], "kill -9 loses none"
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pushing
    assert [one.title for one in stuck.outbox.waiting] == ["quota <gone>", "second"]


@pytest.mark.anyio
async def test_what_was_given_up_is_counted_over_restarts_and_another_run_has_its_own_journal(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    telling = notifier(Hook(404), Hasty(), outbox=Outbox(path, run="run-1"))
    await telling.tell(NOTICE)
    await telling.push()
    await telling.tell(NOTICE)
    await telling.relay([], cursor=7)
    assert (Outbox(path, run="run-1").cursor, Outbox(path, run="run-1").lost) == (7, 1)
    other = Outbox(path, run="run-2")
    assert (other.cursor, other.lost, [one.run for one in other.waiting]) == (None, 1, ["run-1"])


def test_a_file_that_holds_no_notices_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    for wrong in ("", "[]", '{"waiting": [{"x": 1}]}', '{"waiting": 3}'):
        path.write_text(wrong)
        with pytest.raises(CorruptData, match="move it away"):
            Outbox(path, run="run-1")


class Receiver:
    """A webhook over HTTP: it answers what a test has it answer, and keeps what it got."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.got: list[dict[str, Any]] = []
        self.wandered = 0
        """Requests that followed a redirect."""
        self.url = ""

    async def hook(self, request: Request) -> Response:
        """`POST /hook/secret-path`."""
        assert request.headers["content-type"] == "application/json"
        self.got.append(json.loads(await request.body()))
        status = self.answers.pop(0) if self.answers else 200
        if status == 0:
            await asyncio.sleep(3600)  # until the client has gone
        return Response(status_code=status, headers={"location": "/elsewhere"} if status in (302, 307) else {})

    async def elsewhere(self, request: Request) -> Response:
        """Where a redirect leads."""
        self.wandered += 1
        return Response()


@asynccontextmanager
async def receiving(*answers: int) -> AsyncIterator[Receiver]:
    """Serve on a free port until the block ends."""
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
async def test_over_http_a_generic_hook_gets_an_object_and_slack_gets_a_text() -> None:
    async with receiving() as receiver:
        for kind in ("generic", "slack"):
            telling = over_http(receiver, Hasty(), kind=kind)
            await telling.tell(NOTICE)
            await telling.push()
            assert (telling.sent, telling.lost) == (1, 0)
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
async def test_over_http_a_500_is_tried_again_and_a_redirect_is_followed_nowhere() -> None:
    async with receiving(500, 302, 200) as receiver:
        clock = Hasty()
        telling = over_http(receiver, clock)
        await telling.tell(NOTICE)
        await telling.push()
        assert (telling.sent, telling.lost, len(receiver.got), clock.slept) == (1, 0, 3, [1.0, 2.0])
        assert len({got["id"] for got in receiver.got}) == 1
    async with receiving(307, 307) as receiver:
        telling = over_http(receiver, Hasty(), tries=2)
        await telling.tell(NOTICE)
        await telling.push()
        assert (telling.lost, len(receiver.got), receiver.wandered) == (1, 2, 0)


@pytest.mark.anyio
async def test_over_http_an_answer_that_does_not_come_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notifying, "POST_S", 0.5)
    async with receiving(0, 0) as receiver:
        clock = Hasty()
        telling = over_http(receiver, clock, tries=2)
        await telling.tell(NOTICE)
        await telling.push()
        assert (telling.sent, telling.lost, clock.slept) == (0, 1, [1.0])
    gone = over_http(receiver, Hasty(), tries=2)  # nobody listens there any more
    await gone.tell(NOTICE)
    await gone.push()
    assert (gone.sent, gone.lost) == (0, 1)
    told = "".join(capsys.readouterr())
    assert "webhook_away" in told
    assert "secret-path" not in told


@pytest.mark.anyio
async def test_of_too_many_the_oldest_are_given_up() -> None:
    hook, clock = Hook(), Hasty()
    telling = notifier(hook, clock, queue=2)
    for number in range(5):
        await telling.tell(Notice(kind="digest", severity="info", title=str(number), text="", at=0.0))
    await telling.push()
    assert ([body["title"] for body in hook.bodies], telling.lost) == (["3", "4"], 3)


def test_slack_gets_text_that_mentions_nobody() -> None:
    text = payload(replace(NOTICE, run="run-1"), kind="slack")["text"]
    assert "<" not in text
    assert "&lt;!channel&gt; &amp; co" in text


def test_a_generic_hook_gets_fields() -> None:
    body = payload(replace(NOTICE, run="run-1"), kind="generic")
    assert (body["kind"], body["severity"], body["run"]) == ("escalation", "warning", "run-1")


def test_the_address_comes_from_outside_and_is_never_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = NotifyConfig(url_variable="HOOK")
    monkeypatch.delenv("HOOK", raising=False)
    assert address(config) == ""
    monkeypatch.setenv("HOOK", URL)
    assert address(config) == URL
    (tmp_path / "url").write_text("ftp://user:secret@host\n")
    with pytest.raises(InvalidInput) as caught:
        address(NotifyConfig(url_file=str(tmp_path / "url")))
    assert "secret" not in str(caught.value)
