"""What the journal has for people reaches them, whoever wrote it, once: also over a restart."""

from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import Unavailable
from astraflow.contract.maintenance import MaintainerMode
from maintainer.config import NotifyConfig
from maintainer.fleet.alarms import Alarms
from maintainer.notifying import Notifier
from maintainer.outbox import Outbox
from maintainer.relaying import PAGE, Relay
from tests.maintainer.fleet.parts import HAL, OTTO
from tests.maintainer.parts import Scene, scene
from tests.maintainer.test_mcp_server import session_of

pytestmark = pytest.mark.anyio


class Life:
    """One process that follows the journal of a scene, and what it has posted."""

    def __init__(self, here: Scene, path: Path, *, url: str = "https://example.test/secret") -> None:
        self.posted: list[dict[str, Any]] = []

        async def post(url: str, body: Any) -> int:
            self.posted.append(dict(body))
            return 200

        outbox = Outbox(path, run="run-1")
        self.notifier = Notifier(
            NotifyConfig(queue=1000), run="run-1", clock=here.clock, post=post, url=url, outbox=outbox
        )
        self.relay = Relay(here.fleet, self.notifier, here.clock)

    async def turn(self) -> list[str]:
        """What people were told in it."""
        self.posted.clear()
        await self.relay.follow()
        await self.notifier.push()
        return [one["text"] for one in self.posted]


async def escalated(here: Scene, text: str, *, key: str, severity: str = "warning") -> None:
    await here.parts.desk.escalate(severity, actor=HAL, key=key, reason=text)


async def test_an_agent_over_mcp_reaches_people_through_the_maintainers_webhook(tmp_path: Path) -> None:
    async with scene(tmp_path, mode="auto") as here, session_of(here) as (client, _):
        await here.mode(MaintainerMode.AUTO)
        said = await client.call_tool("fleet_escalate", {"severity": "critical", "text": "quota is gone"})
        assert said.structured_content["outcome"] == "applied"
        await here.maintainer.notify()
        [notice] = here.posted
        assert (notice["kind"], notice["severity"], notice["title"]) == ("escalation", "critical", "claude escalates")
        assert notice["text"] == "critical: quota is gone"
        await here.mode(MaintainerMode.OFF)  # people are told in whatever mode
        await escalated(here, "still gone", key="again")
        await here.maintainer.notify()
        assert [one["text"] for one in here.posted[1:]] == ["warning: still gone"]


async def test_each_entry_is_told_once_also_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    async with scene(tmp_path) as here:
        first = Life(here, path)
        await escalated(here, "before it began", key="1")
        assert await first.turn() == ["warning: before it began"]
        assert await first.turn() == []
        await escalated(here, "while it was away", key="2")
        await escalated(here, "while it was away", key="2")
        second = Life(here, path)
        assert await second.turn() == ["warning: while it was away"]
        assert await second.turn() == []
        await escalated(here, "read and not sent", key="3")
        await second.relay.follow()
        assert await Life(here, path).turn() == ["warning: read and not sent"]


async def test_more_than_a_page_is_read_to_its_end_and_what_is_old_is_counted(tmp_path: Path) -> None:
    path, many = tmp_path / "notices.json", PAGE + 60
    async with scene(tmp_path) as here:
        life = Life(here, path)
        assert await life.turn() == []
        for number in range(many):
            await escalated(here, f"matter {'x' * number}", key=f"m-{number}")
        assert await life.turn() == [f"warning: matter {'x' * number}" for number in range(many)]
        await escalated(here, "old", key="old")
        here.clock.advance(2 * 86400.0)
        await escalated(here, "new", key="new")
        assert await life.turn() == ["warning: new"]
        assert life.notifier.lost == 1


async def test_a_trouble_of_the_service_itself_is_told_and_that_it_is_over(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        life, troubles = Life(here, tmp_path / "notices.json"), {"provider cloud": "provider cloud cannot be read: 503"}
        alarms = Alarms(here.parts.fleet, here.parts.desk, here.parts.database, lambda: troubles)
        await alarms.look()
        here.clock.advance(600.0)
        await alarms.look()
        assert await life.turn() == ["warning: provider cloud cannot be read: 503"]
        assert (life.posted[0]["kind"], life.posted[0]["title"]) == ("alarm", "the fleet service has a trouble")
        troubles.clear()
        await alarms.look()
        assert await life.turn() == ["info: provider cloud: what was told of it is over"]


async def test_a_journal_that_is_away_or_was_begun_anew_is_followed_from_there(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    async with scene(tmp_path / "one") as here:
        for number in range(9):
            await escalated(here, f"matter {'x' * number}", key=f"m-{number}")
        life = Life(here, path)
        assert len(await life.turn()) == 9
        here.fleet.is_away = True
        assert await life.turn() == []
        here.fleet.is_away = False
        await escalated(here, "it is back", key="back")
        assert await life.turn() == ["warning: it is back"]
    async with scene(tmp_path / "two") as here:
        await here.parts.desk.escalate("info", actor=OTTO, key="1", reason="another ledger")
        assert await Life(here, path).turn() == ["info: another ledger"]


async def test_without_anybody_to_tell_the_journal_is_not_read(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        asked = []

        class Counted:
            async def decisions(self, **given: Any) -> tuple[()]:
                asked.append(given)
                raise Unavailable("away")

        silent = Life(here, tmp_path / "notices.json", url="")
        silent.relay = Relay(Counted(), silent.notifier, here.clock)
        assert await silent.turn() == []
        assert not asked
