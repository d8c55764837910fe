"""Pinned charts: a user's own order, on the pages of all runs."""

from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import running_web
from tests.web.comparison.test_compared_runs import recorded
from tests.web.page_elements import parsed
from tests.web.runs.test_run_list import filled, record
from web.database.db import Database
from web.database.preferences import preferred_names
from web.database.tables import User
from web.runs.pins import MAX_PINS, PINS, change_pins


async def changed(database: Database, user: int, *changes: str) -> tuple[str, ...]:
    for change in changes:
        await database.write(lambda session, change=change: change_pins(session, user, change))  # type: ignore[misc] # bound now
    return await database.read(lambda session: preferred_names(session, user, PINS))


@pytest.mark.anyio
async def test_each_user_has_own_pins_in_own_order(database: Database) -> None:
    users = [User(name=name, role="viewer", created_at=0.0) for name in ("ada", "bob")]
    await database.write(lambda session: session.add_all(users))
    assert await changed(database, 1, "pin loss", "pin entropy", "pin loss") == ("entropy", "loss")
    assert await changed(database, 2) == ()
    assert await changed(database, 1, "first loss", "unpin entropy", "unpin other") == ("loss",)
    assert len(await changed(database, 2, *(f"pin m{number}" for number in range(MAX_PINS + 3)))) == MAX_PINS


@pytest.mark.anyio
@pytest.mark.parametrize("change", ["", "pin", "pin <b>", "delete loss", f"pin {'a' * 81}"])
async def test_an_unknown_change_is_refused(database: Database, change: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await changed(database, 1, change)
    assert refusal.value.code == "web.unknown_pin"


@pytest.mark.anyio
async def test_pinned_charts_come_first_on_the_page_of_a_run(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=30))
    await recorded(tmp_path, 1, SyntheticRun(began_at=1000.0), seconds=30)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        before = parsed(await client.get("/runs/1"))
        token = before.one("#pins").one("input[name=form_token]")["value"]
        for change in ("pin entropy", "first loss"):
            answer = await client.post("/runs/pins", data={"form_token": token, "change": change, "next": "/runs/1"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/runs/1")
        after = parsed(await client.get("/runs/1"))

    titles = [title.text for title in after.all(".multiple-title")]
    assert titles[:2] == ["Loss", "Entropy"]
    assert sorted(titles) == sorted(title.text for title in before.all(".multiple-title")), "none is shown twice"
