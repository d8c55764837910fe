"""Links, sessions, users, passwords and tokens, below HTTP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from starlette.datastructures import Headers

from astraflow.contract.errors import Conflict, InvalidInput, NotAuthenticated
from tests.fakes.clock import ManualClock
from web.accounts.accounts import Accounts, open_accounts
from web.accounts.attempts import FAILURES_A_MINUTE, Attempts, TooManyAttempts
from web.accounts.viewer import Viewer
from web.audit.entries import Trail
from web.db import Database, open_database
from web.door.roles import Need, Role
from web.settings import SESSION_S

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse battery"
HERE = {"came_from": "192.0.2.1", "browser": "a browser"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def accounts(database: Database, clock: ManualClock) -> Accounts:
    return open_accounts(database, clock=clock, trail=Trail(database, clock=clock))


async def admin_of(accounts: Accounts) -> Viewer:
    return await viewer_with(accounts, await accounts.sessions.log_in(await accounts.sessions.first_link()))


async def viewer_with(accounts: Accounts, cookie: str) -> Viewer:
    viewer = await accounts.sessions.viewer(cookie)
    assert viewer is not None
    return viewer


async def with_password(accounts: Accounts, name: str, role: Role = Role.OPERATOR) -> Viewer:
    link = await accounts.users.add(name, role, by=await admin_of(accounts))
    viewer = await viewer_with(accounts, await accounts.sessions.log_in(link))
    await accounts.users.set_password(viewer, current="", new=PASSWORD)
    return viewer


def everything_in(database: Database) -> str:
    """Every value of every table."""

    def read(session: object) -> str:
        names = session.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars().all()  # type: ignore[attr-defined] # a session
        return " ".join(str(row) for name in names for row in session.execute(text(f"SELECT * FROM {name}")))  # type: ignore[attr-defined] # noqa: S608 (names of tables)

    return database.look_now(read)


async def test_a_link_is_exchanged_once(accounts: Accounts) -> None:
    link = await accounts.sessions.first_link()
    viewer = await viewer_with(accounts, await accounts.sessions.log_in(link))

    assert (viewer.name, viewer.role) == ("admin", Role.ADMIN)
    with pytest.raises(NotAuthenticated, match="used already"):
        await accounts.sessions.log_in(link)


async def test_a_link_that_many_race_for_lets_one_in(accounts: Accounts) -> None:
    link = await accounts.sessions.first_link()
    results = await asyncio.gather(*(accounts.sessions.log_in(link) for _ in range(12)), return_exceptions=True)

    assert sum(isinstance(result, str) for result in results) == 1
    assert sum(isinstance(result, NotAuthenticated) for result in results) == 11


async def test_a_link_and_a_session_end(accounts: Accounts, clock: ManualClock) -> None:
    old = await accounts.sessions.first_link()
    cookie = await accounts.sessions.log_in(await accounts.sessions.first_link())
    clock.advance(SESSION_S)

    with pytest.raises(NotAuthenticated):
        await accounts.sessions.log_in(old)
    for dead in (cookie, "made up", None):
        assert await accounts.sessions.viewer(dead) is None


async def test_sessions_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    first = open_database(tmp_path)
    accounts = open_accounts(first, clock=clock, trail=Trail(first, clock=clock))
    cookie = await accounts.sessions.log_in(await accounts.sessions.first_link())
    first.close()
    second = open_database(tmp_path)
    again = open_accounts(second, clock=clock, trail=Trail(second, clock=clock))

    assert (await viewer_with(again, cookie)).form_token == (await viewer_with(again, cookie)).form_token
    assert again.sessions.cookie_name == accounts.sessions.cookie_name
    second.close()


async def test_two_installations_use_two_cookies(tmp_path: Path, clock: ManualClock) -> None:
    names = set()
    for name in "ab":
        database = open_database(tmp_path / name)
        names.add(open_accounts(database, clock=clock, trail=Trail(database, clock=clock)).sessions.cookie_name)
        database.close()

    assert len(names) == 2


async def test_no_secret_is_in_the_database(accounts: Accounts, database: Database) -> None:
    bob = await with_password(accounts, "bob")
    cookie = await accounts.users.log_in("bob", PASSWORD, **HERE)
    link = await accounts.sessions.first_link()
    _, token = await accounts.tokens.make(bob, name="ci", scope=Role.VIEWER, days=1)
    with pytest.raises(NotAuthenticated):
        await accounts.users.log_in("Tr0ub4dor&3 typed into the name", PASSWORD, **HERE)

    stored = everything_in(database)
    assert "$argon2id$" in stored
    for secret in (PASSWORD, cookie, link, token, "Tr0ub4dor", (await viewer_with(accounts, cookie)).form_token):
        assert secret not in stored


async def test_a_password_lets_in_and_what_is_wrong_is_not_told_apart(accounts: Accounts) -> None:
    await with_password(accounts, "bob")
    assert await accounts.users.log_in("bob", PASSWORD, **HERE)

    messages = set()
    for name, password in (("bob", "wrong"), ("nobody", PASSWORD), ("admin", ""), ("bob", "x" * 10_000), ("\0", "x")):
        with pytest.raises(NotAuthenticated) as problem:
            await accounts.users.log_in(name, password, **HERE)
        messages.add(str(problem.value))
    assert messages == {"the name or the password is wrong"}


async def test_a_new_password_takes_the_old_one_and_ends_other_sessions(accounts: Accounts) -> None:
    bob = await with_password(accounts, "bob")
    elsewhere = await accounts.users.log_in("bob", PASSWORD, **HERE)
    with pytest.raises(NotAuthenticated, match="current password"):
        await accounts.users.set_password(bob, current="wrong", new="another long password")
    with pytest.raises(InvalidInput, match="12 to 512"):
        await accounts.users.set_password(bob, current=PASSWORD, new="short")
    await accounts.users.set_password(bob, current=PASSWORD, new="another long password")

    assert await accounts.sessions.viewer(elsewhere) is None
    with pytest.raises(NotAuthenticated):
        await accounts.users.log_in("bob", PASSWORD, **HERE)


async def test_who_is_locked_out_is_out_everywhere_at_once(accounts: Accounts) -> None:
    admin, bob = await admin_of(accounts), await with_password(accounts, "bob")
    cookie = await accounts.users.log_in("bob", PASSWORD, **HERE)
    _, token = await accounts.tokens.make(bob, name="ci", scope=Role.VIEWER, days=1)
    _, link = await accounts.users.invite(bob.user_id, by=admin)
    await accounts.users.set_disabled(bob.user_id, is_disabled=True, by=admin)

    assert await accounts.sessions.viewer(cookie) is None
    assert await accounts.tokens.viewer(token, came_from="") is None
    for attempt in (accounts.sessions.log_in(link), accounts.users.log_in("bob", PASSWORD, **HERE)):
        with pytest.raises(NotAuthenticated):
            await attempt
    await accounts.users.set_disabled(bob.user_id, is_disabled=False, by=admin)
    assert await accounts.sessions.viewer(cookie) is None, "what ended stays ended"
    assert await accounts.users.log_in("bob", PASSWORD, **HERE)


async def test_nobody_changes_their_own_rights_or_those_of_who_starts_the_process(accounts: Accounts) -> None:
    admin, carol = await admin_of(accounts), await with_password(accounts, "carol", Role.ADMIN)
    for target, by in ((admin, admin), (admin, carol), (carol, carol)):
        with pytest.raises(Conflict):
            await accounts.users.set_role(target.user_id, Role.VIEWER, by=by)
        with pytest.raises(Conflict):
            await accounts.users.set_disabled(target.user_id, is_disabled=True, by=by)
    with pytest.raises(Conflict, match="no such user"):
        await accounts.users.set_role(99, Role.VIEWER, by=admin)


@pytest.mark.parametrize("name", ["", "a b", "oidc:bob", "<b>", "ab\n", "-x", "x" * 65, "böb"])
async def test_a_name_that_could_be_mistaken_is_none(accounts: Accounts, name: str) -> None:
    with pytest.raises(InvalidInput, match="begins with a letter"):
        await accounts.users.add(name, Role.VIEWER, by=await admin_of(accounts))


async def test_a_token_acts_until_it_ends(accounts: Accounts, clock: ManualClock) -> None:
    bob = await with_password(accounts, "bob")
    _, short = await accounts.tokens.make(bob, name="short", scope=Role.VIEWER, days=1)
    _, revoked = await accounts.tokens.make(bob, name="revoked", scope=Role.OPERATOR, days=9)
    acting = await accounts.viewer(Headers({"authorization": f"Bearer {revoked}"}), cookie=None, came_from="192.0.2.9")
    assert acting is not None
    assert (acting.author.name, acting.author.via, acting.author.came_from) == ("bob", "token revoked", "192.0.2.9")
    assert acting.may(Need.OPERATE)
    rows = {row.name: row.id or 0 for row, _ in await accounts.tokens.of(bob, of_all=False)}
    await accounts.tokens.revoke(rows["revoked"], by=bob, of_all=False)
    clock.advance(86400)

    for dead in (short, revoked, short[:-1], "astraflow_pat_", "x"):
        assert await accounts.tokens.viewer(dead, came_from="") is None


async def test_a_header_that_is_no_good_is_not_made_up_for_by_a_cookie(accounts: Accounts) -> None:
    cookie = await accounts.sessions.log_in(await accounts.sessions.first_link())
    for header in ("Bearer astraflow_pat_wrong", "Basic YTpi", ""):
        assert await accounts.viewer(Headers({"authorization": header}), cookie=cookie, came_from="") is None


async def test_tokens_that_cannot_be_are_refused_with_what_can(accounts: Accounts) -> None:
    bob = await with_password(accounts, "bob")
    for name, scope, days, match in (
        ("", Role.VIEWER, 1, "has a name"),
        ("a\nb", Role.VIEWER, 1, "has a name"),
        ("ci", Role.VIEWER, 0, "1 to 366 days"),
        ("ci", Role.VIEWER, 367, "1 to 366 days"),
        ("ci", Role.ADMIN, 1, "cannot have the scope admin"),
    ):
        with pytest.raises(InvalidInput, match=match):
            await accounts.tokens.make(bob, name=name, scope=scope, days=days)


async def test_only_an_admin_ends_what_belongs_to_others(accounts: Accounts) -> None:
    admin, bob = await admin_of(accounts), await with_password(accounts, "bob")
    await accounts.tokens.make(admin, name="ci", scope=Role.ADMIN, days=1)
    ((token, _),) = await accounts.tokens.of(admin, of_all=False)
    with pytest.raises(Conflict):
        await accounts.tokens.revoke(token.id or 0, by=bob, of_all=False)
    with pytest.raises(Conflict):
        await accounts.sessions.revoke(admin.session, by=bob, of_all=False)
    await accounts.sessions.revoke(bob.session, by=admin, of_all=True)

    assert not [row for row, _ in await accounts.sessions.of(admin, of_all=True) if row.cookie_hash == bob.session]


def test_guessing_is_slow_for_one_address_and_not_for_others(clock: ManualClock) -> None:
    attempts = Attempts(clock)
    for _ in range(FAILURES_A_MINUTE):
        attempts.begin("192.0.2.1")
    with pytest.raises(TooManyAttempts, match="wait"):
        attempts.begin("192.0.2.1")
    attempts.begin("192.0.2.2")
    clock.advance(61)
    attempts.begin("192.0.2.1")


def test_logins_that_work_do_not_count_and_a_network_is_one_address(clock: ManualClock) -> None:
    attempts = Attempts(clock)
    for _ in range(3 * FAILURES_A_MINUTE):
        attempts.begin("192.0.2.1")
        attempts.succeed("192.0.2.1")
    for number in range(FAILURES_A_MINUTE):
        attempts.begin(f"2001:db8::{number:x}")
    with pytest.raises(TooManyAttempts):
        attempts.begin("2001:db8::ffff")
    attempts.begin("2001:db8:0:1::1")
