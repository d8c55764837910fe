"""Login links and sessions, below HTTP."""

from pathlib import Path

import pytest
from sqlmodel import select

from astraflow.contract.errors import NotAuthenticated
from tests.fakes.clock import ManualClock
from web.auth import FAILURES_A_MINUTE, Accounts
from web.db import open_database
from web.settings import SESSION_S
from web.tables import BrowserSession, LoginToken

pytestmark = pytest.mark.anyio


async def test_a_token_is_exchanged_once(tmp_path: Path) -> None:
    accounts = Accounts(open_database(tmp_path), clock=ManualClock())
    token = await accounts.login_token()
    cookie = await accounts.log_in(token)

    viewer = await accounts.viewer(cookie)
    assert viewer is not None
    assert (viewer.name, viewer.role) == ("admin", "admin")
    with pytest.raises(NotAuthenticated, match="used already"):
        await accounts.log_in(token)


async def test_a_token_and_a_session_end(tmp_path: Path) -> None:
    clock = ManualClock()
    accounts = Accounts(open_database(tmp_path), clock=clock)
    old, cookie = await accounts.login_token(), await accounts.log_in(await accounts.login_token())
    clock.advance(SESSION_S)

    with pytest.raises(NotAuthenticated):
        await accounts.log_in(old)
    assert await accounts.viewer(cookie) is None
    assert await accounts.viewer("made up") is None
    assert await accounts.viewer(None) is None


async def test_sessions_survive_a_restart_and_secrets_are_not_in_the_database(tmp_path: Path) -> None:
    clock = ManualClock()
    first = open_database(tmp_path)
    accounts = Accounts(first, clock=clock)
    token, unused = await accounts.login_token(), await accounts.login_token()
    cookie = await accounts.log_in(token)
    first.close()
    second = open_database(tmp_path)
    again = Accounts(second, clock=clock)

    assert await again.viewer(cookie) is not None
    assert again.cookie_name == accounts.cookie_name
    rows = second.do_now(lambda session: [*session.exec(select(LoginToken)), *session.exec(select(BrowserSession))])
    stored = " ".join(row.model_dump_json() for row in rows)
    assert not any(secret in stored for secret in (token, unused, cookie))
    second.close()


async def test_two_installations_use_two_cookies(tmp_path: Path) -> None:
    names = {Accounts(open_database(tmp_path / name), clock=ManualClock()).cookie_name for name in "ab"}

    assert len(names) == 2


async def test_guessing_is_slowed_down(tmp_path: Path) -> None:
    clock = ManualClock()
    accounts = Accounts(open_database(tmp_path), clock=clock)
    token = await accounts.login_token()
    for _ in range(FAILURES_A_MINUTE):
        with pytest.raises(NotAuthenticated, match="used already"):
            await accounts.log_in("guess")

    with pytest.raises(NotAuthenticated, match="too many"):
        await accounts.log_in(token)
    clock.advance(61)
    assert await accounts.log_in(token)


async def test_logging_out_ends_one_session(tmp_path: Path) -> None:
    accounts = Accounts(open_database(tmp_path), clock=ManualClock())
    here, there = [await accounts.log_in(await accounts.login_token()) for _ in range(2)]
    await accounts.log_out(here)

    assert await accounts.viewer(here) is None
    assert await accounts.viewer(there) is not None
