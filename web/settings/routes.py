"""`/settings`: the user's account, sessions and tokens, providers, exporters; for admins all users' and retention."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from astraflow.contract.errors import InvalidInput
from web.accounts.grants import GRANTABLE_ROLES, describe_holder
from web.accounts.sessions import ADMIN
from web.components.rendering import PageRenderer
from web.requests.dependencies import (
    AccountsDep,
    FleetDep,
    FollowedRunsDep,
    OwnAddressDep,
    PagesDep,
    RetentionDep,
    StateDep,
    ViewerDep,
)
from web.requests.responses import redirects
from web.security.retention import MAX_DAYS, MIN_DAYS
from web.security.roles import Permission, Role, needs
from web.settings.exporters import TONES, exporter_facts, exporters
from web.settings.providers import QUESTIONS, outcome, providers_view
from web.settings.views import browser_name, grantees, login_of, scopes

router = APIRouter()

Reason = Annotated[str, Form(max_length=200)]


@router.get("/settings")
@needs(Permission.OWN)
async def show(
    request: Request,
    pages: PagesDep,
    state: StateDep,
    fleet: FleetDep,
    accounts: AccountsDep,
    retention: RetentionDep,
    followed: FollowedRunsDep,
    own_address: OwnAddressDep,
    viewer: ViewerDep,
) -> Response:
    """Shows the page. Admins see all users' sessions and tokens, other users their own."""
    is_admin = viewer.may(Permission.ADMINISTER)
    users = await accounts.users.all()
    tokens = await accounts.tokens.list_for(viewer)
    own_user = next(user for user in users if user.id == viewer.user_id)
    exports = await exporter_facts(followed, fleet.settings)
    return pages.page(
        request,
        "settings/page.html",
        page="settings",
        is_admin=is_admin,
        has_password=own_user.password_hash is not None,
        is_local=own_user.identity is None,
        sessions=sorted(
            await accounts.sessions.list_for(viewer), key=lambda item: item[0].cookie_hash != viewer.session
        ),
        tokens=tokens,
        scopes=scopes(viewer),
        users=users,
        first_admin=ADMIN,
        grants=await accounts.grants.all(),
        browser_name=browser_name,
        describe_holder=describe_holder,
        login_of=login_of,
        grantees=grantees(users, tokens, viewer=viewer) if is_admin else [],
        granted=[role.value for role in GRANTABLE_ROLES],
        followed=sorted({run.name for run in followed.all} - {""}),
        pools=[pool.id for pool in state.report.pools] if state.report else [],
        roles=Role,
        admins=await accounts.users.admins(),
        days=await retention.days(),
        days_range=(MIN_DAYS, MAX_DAYS),
        now=fleet.now,
        providers=await providers_view(fleet),
        outcome=outcome,
        questions=QUESTIONS,
        exporters=exporters(exports.facts, fleet.settings, own_address=own_address),
        exports=exports,
        exporter_tones=TONES,
    )


@router.post("/settings/password")
@needs(Permission.OWN)
@redirects("/settings#account", failed="The password was not changed")
async def set_password(
    request: Request, accounts: AccountsDep, viewer: ViewerDep, current: str = Form(""), new: str = Form("")
) -> str:
    """Sets the user's password."""
    came_from = str(request.state.came_from)
    accounts.attempts.begin(came_from)
    await accounts.users.set_password(viewer, current=current, new=new)
    accounts.attempts.succeed(came_from)
    return "password changed; your other sessions were ended"


@router.post("/settings/tokens")
@needs(Permission.OWN)
@redirects("/settings#tokens", failed="No token was created")
async def make_token(
    request: Request,
    pages: PagesDep,
    accounts: AccountsDep,
    viewer: ViewerDep,
    name: str = Form(""),
    scope: str = Form(""),
    days: int = Form(0),
) -> Response:
    """Creates a token and shows its secret, which is never shown again."""
    _, token = await accounts.tokens.create(viewer, name=name, scope=role_of(scope), days=days)
    return _secret(
        request,
        pages,
        title=f"Token {name.strip()}",
        sentence="Programs send it in the header Authorization: Bearer. It acts as you, limited to its scope.",
        secret=token,
        back="/settings#tokens",
    )


@router.get("/settings/tokens/{token_id}/revoke")
@needs(Permission.OWN)
async def ask_revoke_token(
    request: Request, pages: PagesDep, accounts: AccountsDep, viewer: ViewerDep, token_id: int
) -> Response:
    """Shows the confirmation page for revoking a token."""
    tokens = await accounts.tokens.list_for(viewer)
    name = next((token.name for token, _ in tokens if token.id == token_id), "")
    return pages.confirm(
        request,
        page="settings",
        title=f"Revoke token {name}?" if name else "Revoke this token?",
        sentence="Requests with this token are refused from now on. This cannot be undone; you can create a new token.",
        button="Revoke token",
        back="/settings",
    )


@router.post("/settings/tokens/{token_id}/revoke")
@needs(Permission.OWN)
@redirects("/settings#tokens", failed="Nothing was revoked")
async def revoke_token(accounts: AccountsDep, viewer: ViewerDep, token_id: int, reason: Reason = "") -> str:
    """Revokes a token."""
    return await accounts.tokens.revoke(token_id, by=viewer, reason=reason)


@router.post("/settings/sessions/{session}/revoke")
@needs(Permission.OWN)
@redirects("/settings#sessions", failed="No session was ended")
async def revoke_session(accounts: AccountsDep, viewer: ViewerDep, session: str, reason: Reason = "") -> str:
    """Ends a browser's session."""
    return await accounts.sessions.revoke(session, by=viewer, reason=reason)


@router.post("/settings/users")
@needs(Permission.ACCOUNTS)
@redirects("/settings#users", failed="No user was added")
async def add_user(
    request: Request,
    pages: PagesDep,
    accounts: AccountsDep,
    own_address: OwnAddressDep,
    viewer: ViewerDep,
    name: str = Form(""),
    role: str = Form(""),
    reason: Reason = "",
) -> Response:
    """Adds a local user and shows the login link."""
    _, link = await accounts.users.add(name, role_of(role), by=viewer, reason=reason)
    return _invitation(request, pages, own_address, name, link)


@router.post("/settings/users/{user_id}/link")
@needs(Permission.ACCOUNTS)
@redirects("/settings#users", failed="No link was created")
async def invite(
    request: Request,
    pages: PagesDep,
    accounts: AccountsDep,
    own_address: OwnAddressDep,
    viewer: ViewerDep,
    user_id: int,
    reason: Reason = "",
) -> Response:
    """Shows a new login link for a local user, for example after a forgotten password."""
    name, link = await accounts.users.invite(user_id, by=viewer, reason=reason)
    return _invitation(request, pages, own_address, name, link)


@router.post("/settings/users/{user_id}/role")
@needs(Permission.ACCOUNTS)
@redirects("/settings#users", failed="The role was not changed")
async def set_role(
    accounts: AccountsDep, viewer: ViewerDep, user_id: int, role: str = Form(""), reason: Reason = ""
) -> str:
    """Changes a user's role."""
    return await accounts.users.set_role(user_id, role_of(role), by=viewer, reason=reason)


@router.get("/settings/users/{user_id}/disable")
@needs(Permission.ACCOUNTS)
async def ask_disable(request: Request, pages: PagesDep, accounts: AccountsDep, user_id: int) -> Response:
    """Shows the confirmation page for disabling a user."""
    return pages.confirm(
        request,
        page="settings",
        title=f"Disable {(await accounts.users.user(user_id)).name}?",
        sentence="Sessions, login links and tokens end now. You can enable the user again; new tokens are needed then.",
        button="Disable",
        back="/settings",
    )


@router.post("/settings/users/{user_id}/disable")
@needs(Permission.ACCOUNTS)
@redirects("/settings#users", failed="Nothing was changed")
async def disable(accounts: AccountsDep, viewer: ViewerDep, user_id: int, reason: Reason = "") -> str:
    """Disables a user."""
    return await accounts.users.set_disabled(user_id, is_disabled=True, by=viewer, reason=reason)


@router.post("/settings/users/{user_id}/enable")
@needs(Permission.ACCOUNTS)
@redirects("/settings#users", failed="Nothing was changed")
async def enable(accounts: AccountsDep, viewer: ViewerDep, user_id: int, reason: Reason = "") -> str:
    """Enables a disabled user."""
    return await accounts.users.set_disabled(user_id, is_disabled=False, by=viewer, reason=reason)


@router.post("/settings/retention")
@needs(Permission.ADMINISTER)
@redirects("/settings#retention", failed="Retention was not changed")
async def set_retention(retention: RetentionDep, viewer: ViewerDep, days: int = Form(0), reason: Reason = "") -> str:
    """Sets the retention of the audit log."""
    await retention.set_days(days, by=viewer.author, reason=reason)
    return f"audit log retention is {days} days"


def role_of(text: str) -> Role:
    """Parses a role name from a form. Raises: InvalidInput."""
    role = Role.parse(text)
    if role is None:
        role_names = ", ".join(role.value for role in Role)
        raise InvalidInput(f"cannot use role {text[:40]!r}: unknown role; use one of {role_names}", code="role.unknown")
    return role


def _invitation(request: Request, pages: PageRenderer, own_address: str, name: str, token: str) -> Response:
    return _secret(
        request,
        pages,
        title=f"Login link for {name}",
        sentence="Works once, for 24 hours. Send it only to this user: opening it logs in and sets a password.",
        secret=f"{own_address}/login?token={token}",
        back="/settings#users",
    )


def _secret(request: Request, pages: PageRenderer, *, title: str, sentence: str, secret: str, back: str) -> Response:
    return pages.page(
        request, "settings/secret.html", page="settings", title=title, sentence=sentence, secret=secret, back=back
    )
