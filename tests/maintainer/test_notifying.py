"""Webhooks: tried again, bounded, and silent about where they go."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from maintainer.config import NotifyConfig
from maintainer.notifying import Notice, Notifier, address, payload
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


def notifier(hook: Hook, clock: Hasty, **changes: Any) -> Notifier:
    return Notifier(NotifyConfig.parse(changes, where=""), run="run-1", clock=clock, post=hook.post, url=URL)


@pytest.mark.anyio
async def test_it_is_tried_again_with_pauses_and_then_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    hook, clock = Hook(None, 503, 429, None, 500, None), Hasty()
    telling = notifier(hook, clock)
    telling.tell(NOTICE)
    await telling.push()
    assert (telling.sent, telling.lost, clock.slept) == (0, 1, [1.0, 2.0, 4.0, 8.0])
    telling.tell(NOTICE)
    hook.answers = [503, 200]
    await telling.push()
    assert (telling.sent, telling.lost) == (1, 1)
    assert "secret-path" not in "".join(capsys.readouterr())


@pytest.mark.anyio
async def test_what_is_refused_for_good_is_not_tried_again() -> None:
    hook, clock = Hook(404), Hasty()
    telling = notifier(hook, clock)
    telling.tell(NOTICE)
    await telling.push()
    assert (telling.lost, clock.slept) == (1, [])


@pytest.mark.anyio
async def test_of_too_many_the_oldest_are_given_up() -> None:
    hook, clock = Hook(), Hasty()
    telling = notifier(hook, clock, queue=2)
    for number in range(5):
        telling.tell(Notice(kind="digest", severity="info", title=str(number), text="", at=0.0))
    await telling.push()
    assert ([body["title"] for body in hook.bodies], telling.lost) == (["3", "4"], 3)


def test_slack_gets_text_that_mentions_nobody() -> None:
    text = payload(NOTICE, kind="slack", run="run-1")["text"]
    assert "<" not in text
    assert "&lt;!channel&gt; &amp; co" in text


def test_a_generic_hook_gets_fields() -> None:
    body = payload(NOTICE, kind="generic", run="run-1")
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
