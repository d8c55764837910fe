"""The relay forwards journal entries of all actors to operators exactly once, also after a restart."""

from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import Unavailable
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.records import problem_record
from maintainer.agent.config import NotifyConfig
from maintainer.agent.notifications.journal_relay import ALARM_TITLES, PAGE, JournalRelay
from maintainer.agent.notifications.notice_queue import NoticeQueue
from maintainer.agent.notifications.webhook import Answer, Notifier
from maintainer.fleet.alarms import Alarms
from tests.maintainer.fleet.parts import HAL, OTTO
from tests.maintainer.mcp.test_server import session_of
from tests.maintainer.parts import Scene, scene

pytestmark = pytest.mark.anyio


class Life:
    """One process lifetime of a journal relay, with its posted notices."""

    def __init__(self, here: Scene, path: Path, *, url: str = "https://example.test/secret") -> None:
        self.posted: list[dict[str, Any]] = []

        async def post(url: str, body: Any) -> Answer:
            self.posted.append(dict(body))
            return Answer(status=200)

        outbox = NoticeQueue(path, run="run-1")
        self.notifier = Notifier(
            NotifyConfig(max_queued=1000), run="run-1", clock=here.clock, post=post, url=url, queue=outbox
        )
        self.relay = JournalRelay(here.fleet, self.notifier, here.clock)

    async def turn(self) -> list[str]:
        """Forwards new entries; returns the texts of the posted notices."""
        self.posted.clear()
        await self.relay.forward_new_entries()
        await self.notifier.send_queued()
        return [post["text"] for post in self.posted]


async def escalated(here: Scene, text: str, *, key: str, severity: Severity = Severity.WARNING) -> None:
    await here.parts.fleet_manager.escalate(severity, actor=HAL, key=key, reason=text)


@pytest.mark.long
async def test_an_escalation_over_mcp_reaches_the_maintainers_webhook(tmp_path: Path) -> None:
    async with scene(tmp_path, mode="auto") as here, session_of(here) as (client, _):
        await here.mode(MaintainerMode.AUTO)
        first, second = "quota is gone", "still gone"
        result = await client.call_tool("fleet_escalate", {"severity": "critical", "text": first})
        assert result.structured_content["outcome"] == "applied"
        await here.maintainer.send_notices()
        [notice] = here.posted
        assert (notice["kind"], notice["severity"], notice["title"]) == ("escalation", "critical", "claude escalates")
        assert notice["text"] == first
        await here.mode(MaintainerMode.OFF)  # notices are sent in every mode
        await escalated(here, second, key="again")
        await here.maintainer.send_notices()
        assert [post["text"] for post in here.posted[1:]] == [f"{second}"]


async def test_each_entry_is_sent_once_also_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    before, during, unsent = "before it began", "while it was away", "read and not sent"
    async with scene(tmp_path) as here:
        first = Life(here, path)
        await escalated(here, before, key="1")
        assert await first.turn() == [f"{before}"]
        assert await first.turn() == []
        await escalated(here, during, key="2")
        await escalated(here, during, key="2")
        second = Life(here, path)
        assert await second.turn() == [f"{during}"]
        assert await second.turn() == []
        await escalated(here, unsent, key="3")
        await second.relay.forward_new_entries()
        assert await Life(here, path).turn() == [f"{unsent}"]


@pytest.mark.long
async def test_several_pages_are_read_to_the_end_and_old_entries_are_dropped(tmp_path: Path) -> None:
    path, many = tmp_path / "notices.json", PAGE + 60
    async with scene(tmp_path) as here:
        life = Life(here, path)
        assert await life.turn() == []
        for number in range(many):
            await escalated(here, f"matter {'x' * number}", key=f"m-{number}")
        assert await life.turn() == [f"matter {'x' * number}" for number in range(many)]
        await escalated(here, "old", key="old")
        here.clock.advance(2 * 86400.0)
        await escalated(here, "new", key="new")
        assert await life.turn() == ["new"]
        assert life.notifier.dropped == 1


async def test_alarms_of_the_fleet_service_are_sent_with_their_end(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        subject, text = "provider cloud", "provider cloud cannot be read: 503"
        life, problems = (
            Life(here, tmp_path / "notices.json"),
            {subject: problem_record("provider_unreadable", "", provider="cloud", error="503")},
        )
        alarms = Alarms(here.parts.fleet, here.parts.fleet_manager, here.parts.database, lambda: problems)
        await alarms.check()
        here.clock.advance(600.0)
        await alarms.check()
        assert await life.turn() == [text]
        assert life.posted[0]["severity"] == "warning"
        assert (life.posted[0]["kind"], life.posted[0]["title"]) == ("alarm", ALARM_TITLES[RecordKind.ALARM])
        problems.clear()
        await alarms.check()
        [text] = await life.turn()
        assert text.startswith(f"{subject}: ")
        assert life.posted[0]["title"] == ALARM_TITLES[RecordKind.ALARM_OVER]


async def test_the_relay_resumes_after_an_outage_and_with_a_new_audit_log(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    async with scene(tmp_path / "one") as here:
        for number in range(9):
            await escalated(here, f"matter {'x' * number}", key=f"m-{number}")
        life = Life(here, path)
        assert len(await life.turn()) == 9
        here.fleet.is_away = True
        assert await life.turn() == []
        here.fleet.is_away = False
        text = "it is back"
        await escalated(here, text, key="back")
        assert await life.turn() == [f"{text}"]
    async with scene(tmp_path / "two") as here:
        await here.parts.fleet_manager.escalate(Severity.INFO, actor=OTTO, key="1", reason="another")
        assert await Life(here, path).turn() == ["another"]


async def test_without_a_webhook_the_audit_log_is_not_read(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        queries = []

        class Counted:
            async def decisions(self, **query: Any) -> tuple[()]:
                queries.append(query)
                raise Unavailable("away")

        silent = Life(here, tmp_path / "notices.json", url="")
        silent.relay = JournalRelay(Counted(), silent.notifier, here.clock)
        assert await silent.turn() == []
        assert not queries
