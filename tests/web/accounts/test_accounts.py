"""Login links, sessions, users, passwords and tokens, tested without HTTP."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text
from starlette.datastructures import Headers

from astraflow.contract.errors import Conflict, InvalidInput, NotAuthenticated
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from web.accounts.accounts import FAILURES_A_MINUTE, Accounts, LoginAttempts, TooManyAttempts, open_accounts
from web.accounts.users import Passwords
from web.accounts.viewer import Viewer
from web.database.db import Database, open_database
from web.process_settings import SESSION_S
from web.security.audit_log import AuditLog
from web.security.problems import NotFound
from web.security.roles import Permission, Role

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse battery"
HERE = {"came_from": "192.0.2.1", "browser": "a browser"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def accounts(database: Database, clock: ManualClock) -> Accounts:
    return open_accounts(database, clock=clock, audit_log=AuditLog(database, clock=clock))


async def admin_of(accounts: Accounts) -> Viewer:
    return await viewer_with(accounts, await accounts.sessions.log_in(await accounts.sessions.first_link()))


async def viewer_with(accounts: Accounts, cookie: str) -> Viewer:
    viewer = await accounts.sessions.viewer(cookie)
    assert viewer is not None
    return viewer


async def with_password(accounts: Accounts, name: str, role: Role = Role.OPERATOR) -> Viewer:
    _, link = await accounts.users.add(name, role, by=await admin_of(accounts))
    viewer = await viewer_with(accounts, await accounts.sessions.log_in(link))
    await accounts.users.set_password(viewer, current="", new=PASSWORD)
    return viewer


def everything_in(database: Database) -> str:
    """Returns all values of all tables as one text."""

    def read(session: object) -> str:
        names = session.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars().all()  # type: ignore[attr-defined] # a session
        return " ".join(str(row) for name in names for row in session.execute(text(f"SELECT * FROM {name}")))  # type: ignore[attr-defined] # noqa: S608 (names of tables)

    return database.read_sync(read)


async def test_a_login_link_works_once(accounts: Accounts) -> None:
    link = await accounts.sessions.first_link()
    viewer = await viewer_with(accounts, await accounts.sessions.log_in(link))

    assert (viewer.name, viewer.role) == ("admin", Role.ADMIN)
    with raises_code(NotAuthenticated, "login.invalid_link"):
        await accounts.sessions.log_in(link)


async def test_a_login_link_admits_one_of_several_concurrent_logins(accounts: Accounts) -> None:
    link = await accounts.sessions.first_link()
    results = await asyncio.gather(*(accounts.sessions.log_in(link) for _ in range(12)), return_exceptions=True)

    assert sum(isinstance(result, str) for result in results) == 1
    assert sum(isinstance(result, NotAuthenticated) for result in results) == 11


async def test_login_links_and_sessions_expire(accounts: Accounts, clock: ManualClock) -> None:
    old = await accounts.sessions.first_link()
    cookie = await accounts.sessions.log_in(await accounts.sessions.first_link())
    clock.advance(SESSION_S)

    with pytest.raises(NotAuthenticated):
        await accounts.sessions.log_in(old)
    for dead in (cookie, "made up", None):
        assert await accounts.sessions.viewer(dead) is None


async def test_sessions_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    first = open_database(tmp_path)
    accounts = open_accounts(first, clock=clock, audit_log=AuditLog(first, clock=clock))
    cookie = await accounts.sessions.log_in(await accounts.sessions.first_link())
    first.close()
    second = open_database(tmp_path)
    again = open_accounts(second, clock=clock, audit_log=AuditLog(second, clock=clock))

    assert (await viewer_with(again, cookie)).form_token == (await viewer_with(again, cookie)).form_token
    assert again.sessions.cookie_name == accounts.sessions.cookie_name
    second.close()


async def test_two_installations_use_two_cookies(tmp_path: Path, clock: ManualClock) -> None:
    names = set()
    for name in "ab":
        database = open_database(tmp_path / name)
        names.add(open_accounts(database, clock=clock, audit_log=AuditLog(database, clock=clock)).sessions.cookie_name)
        database.close()

    assert len(names) == 2


async def test_no_secret_is_in_the_database(accounts: Accounts, database: Database) -> None:
    bob = await with_password(accounts, "bob")
    cookie = await accounts.users.log_in("bob", PASSWORD, **HERE)
    link = await accounts.sessions.first_link()
    _, token = await accounts.tokens.create(bob, name="ci", scope=Role.VIEWER, days=1)
    with pytest.raises(NotAuthenticated):
        await accounts.users.log_in("Tr0ub4dor&3 typed into the name", PASSWORD, **HERE)

    stored = everything_in(database)
    assert "$argon2id$" in stored
    for secret in (PASSWORD, cookie, link, token, "Tr0ub4dor", (await viewer_with(accounts, cookie)).form_token):
        assert secret not in stored


@pytest.mark.long
@pytest.mark.usefixtures("real_passwords")
async def test_passwords_are_hashed_with_the_parameters_of_rfc_9106() -> None:
    """The other tests use cheaper parameters. Source: RFC 9106, section 4, second recommended set."""
    passwords = Passwords()
    stored = await passwords.hash_password(PASSWORD)

    assert stored.split("$")[1:4] == ["argon2id", "v=19", "m=65536,t=3,p=4"]
    assert await passwords.is_correct(stored, PASSWORD)
    assert not await passwords.is_correct(stored, PASSWORD + "x")


async def test_a_wrong_name_and_a_wrong_password_have_the_same_error(accounts: Accounts) -> None:
    await with_password(accounts, "bob")
    assert await accounts.users.log_in("bob", PASSWORD, **HERE)

    messages = set()
    for name, password in (("bob", "wrong"), ("unknown", PASSWORD), ("admin", ""), ("bob", "x" * 10_000), ("\0", "x")):
        with pytest.raises(NotAuthenticated) as problem:
            await accounts.users.log_in(name, password, **HERE)
        messages.add(str(problem.value))
    assert len(messages) == 1


async def test_a_password_change_requires_the_current_one_and_ends_other_sessions(accounts: Accounts) -> None:
    bob = await with_password(accounts, "bob")
    elsewhere = await accounts.users.log_in("bob", PASSWORD, **HERE)
    with raises_code(NotAuthenticated, "login.wrong_password"):
        await accounts.users.set_password(bob, current="wrong", new="another long password")
    with raises_code(InvalidInput, "account.invalid_password", "12", "512"):
        await accounts.users.set_password(bob, current=PASSWORD, new="short")
    await accounts.users.set_password(bob, current=PASSWORD, new="another long password")

    assert await accounts.sessions.viewer(elsewhere) is None
    with pytest.raises(NotAuthenticated):
        await accounts.users.log_in("bob", PASSWORD, **HERE)


async def test_disabling_a_user_ends_its_sessions_tokens_and_links(accounts: Accounts) -> None:
    admin, bob = await admin_of(accounts), await with_password(accounts, "bob")
    cookie = await accounts.users.log_in("bob", PASSWORD, **HERE)
    _, token = await accounts.tokens.create(bob, name="ci", scope=Role.VIEWER, days=1)
    _, link = await accounts.users.invite(bob.user_id, by=admin)
    await accounts.users.set_disabled(bob.user_id, is_disabled=True, by=admin)

    assert await accounts.sessions.viewer(cookie) is None
    assert await accounts.tokens.viewer(token, came_from="") is None
    for attempt in (accounts.sessions.log_in(link), accounts.users.log_in("bob", PASSWORD, **HERE)):
        with pytest.raises(NotAuthenticated):
            await attempt
    await accounts.users.set_disabled(bob.user_id, is_disabled=False, by=admin)
    assert await accounts.sessions.viewer(cookie) is None, "ended sessions stay ended"
    assert await accounts.users.log_in("bob", PASSWORD, **HERE)


async def test_users_cannot_change_their_own_rights_or_those_of_the_first_admin(accounts: Accounts) -> None:
    admin, carol = await admin_of(accounts), await with_password(accounts, "carol", Role.ADMIN)
    for target, by in ((admin, admin), (admin, carol), (carol, carol)):
        with pytest.raises(Conflict):
            await accounts.users.set_role(target.user_id, Role.VIEWER, by=by)
        with pytest.raises(Conflict):
            await accounts.users.set_disabled(target.user_id, is_disabled=True, by=by)
    with raises_code(NotFound, "account.unknown_user"):
        await accounts.users.set_role(99, Role.VIEWER, by=admin)


@pytest.mark.parametrize("name", ["", "a b", "oidc:bob", "<b>", "ab\n", "-x", "x" * 65, "böb"])
async def test_an_invalid_user_name_is_refused(accounts: Accounts, name: str) -> None:
    with raises_code(InvalidInput, "account.invalid_name"):
        await accounts.users.add(name, Role.VIEWER, by=await admin_of(accounts))


async def test_a_token_works_until_it_is_revoked_or_expires(accounts: Accounts, clock: ManualClock) -> None:
    bob = await with_password(accounts, "bob")
    _, short = await accounts.tokens.create(bob, name="short", scope=Role.VIEWER, days=1)
    _, revoked = await accounts.tokens.create(bob, name="revoked", scope=Role.OPERATOR, days=9)
    acting = await accounts.viewer(Headers({"authorization": f"Bearer {revoked}"}), cookie=None, came_from="192.0.2.9")
    assert acting is not None
    assert (acting.author.name, acting.author.via, acting.author.came_from) == ("bob", "token revoked", "192.0.2.9")
    assert acting.may(Permission.OPERATE)
    rows = {row.name: row.id or 0 for row, _ in await accounts.tokens.list_for(bob)}
    await accounts.tokens.revoke(rows["revoked"], by=bob)
    clock.advance(86400)

    for dead in (short, revoked, short[:-1], "astraflow_pat_", "x"):
        assert await accounts.tokens.viewer(dead, came_from="") is None


async def test_an_invalid_authorization_header_is_refused_despite_a_valid_cookie(accounts: Accounts) -> None:
    cookie = await accounts.sessions.log_in(await accounts.sessions.first_link())
    for header in ("Bearer astraflow_pat_wrong", "Basic YTpi", ""):
        assert await accounts.viewer(Headers({"authorization": header}), cookie=cookie, came_from="") is None


async def test_invalid_tokens_are_refused_with_a_code(accounts: Accounts) -> None:
    bob = await with_password(accounts, "bob")
    for name, scope, days, code in (
        ("", Role.VIEWER, 1, "token.invalid_name"),
        ("a\nb", Role.VIEWER, 1, "token.invalid_name"),
        ("ci", Role.VIEWER, 0, "token.invalid_validity"),
        ("ci", Role.VIEWER, 367, "token.invalid_validity"),
        ("ci", Role.ADMIN, 1, "token.invalid_scope"),
    ):
        with pytest.raises(InvalidInput) as caught:
            await accounts.tokens.create(bob, name=name, scope=scope, days=days)
        assert caught.value.code == code


async def test_only_admins_revoke_tokens_and_sessions_of_others(accounts: Accounts) -> None:
    admin, bob = await admin_of(accounts), await with_password(accounts, "bob")
    await accounts.tokens.create(admin, name="ci", scope=Role.ADMIN, days=1)
    ((token, _),) = await accounts.tokens.list_for(admin)
    with raises_code(NotFound, "token.unknown"):
        await accounts.tokens.revoke(token.id or 0, by=bob)
    with raises_code(NotFound, "session.unknown"):
        await accounts.sessions.revoke(admin.session, by=bob)
    await accounts.sessions.revoke(bob.session, by=admin)

    assert not [row for row, _ in await accounts.sessions.list_for(admin) if row.cookie_hash == bob.session]


def test_failed_logins_are_limited_for_each_address(clock: ManualClock) -> None:
    attempts = LoginAttempts(clock)
    for _ in range(FAILURES_A_MINUTE):
        attempts.begin("192.0.2.1")
    with raises_code(TooManyAttempts, "login.too_many_attempts"):
        attempts.begin("192.0.2.1")
    attempts.begin("192.0.2.2")
    clock.advance(61)
    attempts.begin("192.0.2.1")


def test_successful_logins_do_not_count_and_an_ipv6_network_counts_as_one_address(clock: ManualClock) -> None:
    attempts = LoginAttempts(clock)
    for _ in range(3 * FAILURES_A_MINUTE):
        attempts.begin("192.0.2.1")
        attempts.succeed("192.0.2.1")
    for number in range(FAILURES_A_MINUTE):
        attempts.begin(f"2001:db8::{number:x}")
    with pytest.raises(TooManyAttempts):
        attempts.begin("2001:db8::ffff")
    attempts.begin("2001:db8:0:1::1")
