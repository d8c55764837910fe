"""`/settings`: one's own account, sessions and tokens; providers, exporters; for admins, everybody's, and retention."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from astraflow.contract.errors import AstraFlowError, InvalidInput
from web.accounts.grants import GRANTED
from web.accounts.viewer import Viewer
from web.acts.providers import look
from web.acts.steering import told
from web.audit.retention import LONGEST_DAYS, SHORTEST_DAYS
from web.door.addresses import own_address
from web.door.flash import Flash
from web.door.roles import Need, Role, needs
from web.parts import Parts, PartsOf, ViewerOf
from web.present.exporters import exporters_view
from web.present.providers import providers_view
from web.present.settings import grant_rows, grantees, need_rows, scopes, session_rows, token_rows, user_rows
from web.present.shell import shell
from web.reading.exporters import known_exports

router = APIRouter()

Reason = Annotated[str, Form(max_length=200)]


@router.get("/settings")
@needs(Need.OWN)
async def show(request: Request, parts: PartsOf, viewer: ViewerOf) -> Response:
    """The page. Administrators see everybody's sessions and tokens, others their own."""
    return await _page(request, parts, viewer)


@router.post("/settings/password")
@needs(Need.OWN)
async def set_password(
    request: Request, parts: PartsOf, viewer: ViewerOf, current: str = Form(""), new: str = Form("")
) -> Response:
    """Choose a password."""
    came_from = str(request.state.came_from)
    try:
        parts.accounts.attempts.begin(came_from)
        await parts.accounts.users.set_password(viewer, current=current, new=new)
    except AstraFlowError as problem:
        return _failed("The password was not changed", problem, at="account")
    parts.accounts.attempts.succeed(came_from)
    return _done("the password is changed; your other sessions are over", at="account")


@router.post("/settings/tokens")
@needs(Need.OWN)
async def make_token(
    request: Request, parts: PartsOf, viewer: ViewerOf, name: str = Form(""), scope: str = Form(""), days: int = Form(0)
) -> Response:
    """Make a token, and show it: this answer is the only place where it ever is."""
    try:
        _, token = await parts.accounts.tokens.make(viewer, name=name, scope=role_of(scope), days=days)
    except AstraFlowError as problem:
        return _failed("No token was made", problem, at="tokens")
    return _secret(
        request,
        parts,
        title=f"Token {name.strip()}",
        sentence="Programs send it in the header Authorization: Bearer. It acts in your name, within its scope.",
        secret=token,
        back="/settings#tokens",
    )


@router.get("/settings/tokens/{token_id}/revoke")
@needs(Need.OWN)
async def ask_revoke_token(request: Request, parts: PartsOf, viewer: ViewerOf, token_id: int) -> Response:
    """Say what revoking a token does, and ask."""
    tokens = await parts.accounts.tokens.of(viewer, of_all=viewer.may(Need.ADMINISTER))
    name = next((token.name for token, _ in tokens if token.id == token_id), "")
    return _ask(
        request,
        parts,
        title=f"Revoke token {name}?" if name else "Revoke this token?",
        sentence="Programs that use it are refused from now on. This cannot be undone; a new one can be made.",
        button="Revoke token",
    )


@router.post("/settings/tokens/{token_id}/revoke")
@needs(Need.OWN)
async def revoke_token(parts: PartsOf, viewer: ViewerOf, token_id: int, reason: Reason = "") -> Response:
    """End a token."""
    try:
        of_all = viewer.may(Need.ADMINISTER)
        name = await parts.accounts.tokens.revoke(token_id, by=viewer, of_all=of_all, reason=reason)
    except AstraFlowError as problem:
        return _failed("Nothing was revoked", problem, at="tokens")
    return _done(f"token {name} is revoked", at="tokens")


@router.post("/settings/sessions/{session}/revoke")
@needs(Need.OWN)
async def revoke_session(parts: PartsOf, viewer: ViewerOf, session: str, reason: Reason = "") -> Response:
    """Log a browser out."""
    try:
        of_all = viewer.may(Need.ADMINISTER)
        await parts.accounts.sessions.revoke(session, by=viewer, of_all=of_all, reason=reason)
    except AstraFlowError as problem:
        return _failed("No session was ended", problem, at="sessions")
    return _done("that browser is logged out", at="sessions")


@router.post("/settings/users")
@needs(Need.ADMINISTER)
async def add_user(
    request: Request, parts: PartsOf, viewer: ViewerOf, name: str = Form(""), role: str = Form(""), reason: Reason = ""
) -> Response:
    """Add a local user, and show the link with which they come in."""
    try:
        link = await parts.accounts.users.add(name, role_of(role), by=viewer, reason=reason)
    except AstraFlowError as problem:
        return _failed("Nobody was added", problem, at="users")
    return _invitation(request, parts, name, link)


@router.post("/settings/users/{user_id}/link")
@needs(Need.ADMINISTER)
async def invite(request: Request, parts: PartsOf, viewer: ViewerOf, user_id: int, reason: Reason = "") -> Response:
    """Show a new login link for a local user, who has forgotten the password, say."""
    try:
        name, link = await parts.accounts.users.invite(user_id, by=viewer, reason=reason)
    except AstraFlowError as problem:
        return _failed("No link was made", problem, at="users")
    return _invitation(request, parts, name, link)


@router.post("/settings/users/{user_id}/role")
@needs(Need.ADMINISTER)
async def set_role(
    parts: PartsOf, viewer: ViewerOf, user_id: int, role: str = Form(""), reason: Reason = ""
) -> Response:
    """Give a user another role."""
    try:
        name = await parts.accounts.users.set_role(user_id, role_of(role), by=viewer, reason=reason)
    except AstraFlowError as problem:
        return _failed("The role was left as it is", problem, at="users")
    return _done(f"{name} is {role} now", at="users")


@router.get("/settings/users/{user_id}/disable")
@needs(Need.ADMINISTER)
async def ask_disable(request: Request, parts: PartsOf, user_id: int) -> Response:
    """Say what locking a user out does, and ask."""
    name = next((user.name for user in await parts.accounts.users.all() if user.id == user_id), "this user")
    return _ask(
        request,
        parts,
        title=f"Lock {name} out?",
        sentence="Their sessions, links and tokens end now. You can let them in again; tokens have to be made anew.",
        button="Lock out",
    )


@router.post("/settings/users/{user_id}/disable")
@needs(Need.ADMINISTER)
async def disable(parts: PartsOf, viewer: ViewerOf, user_id: int, reason: Reason = "") -> Response:
    """Lock a user out."""
    return await _set_disabled(parts, viewer, user_id, is_disabled=True, reason=reason)


@router.post("/settings/users/{user_id}/enable")
@needs(Need.ADMINISTER)
async def enable(parts: PartsOf, viewer: ViewerOf, user_id: int, reason: Reason = "") -> Response:
    """Let a user in again."""
    return await _set_disabled(parts, viewer, user_id, is_disabled=False, reason=reason)


@router.post("/settings/retention")
@needs(Need.ADMINISTER)
async def set_retention(parts: PartsOf, viewer: ViewerOf, days: int = Form(0), reason: Reason = "") -> Response:
    """Choose how long the audit is kept."""
    try:
        await parts.retention.choose(days, by=viewer, reason=reason)
    except AstraFlowError as problem:
        return _failed("Retention was left as it is", problem, at="retention")
    return _done(f"the audit is kept for {days} days", at="retention")


async def _page(request: Request, parts: Parts, viewer: Viewer) -> Response:
    accounts, is_admin = parts.accounts, viewer.may(Need.ADMINISTER)
    users = await accounts.users.all()
    tokens = await accounts.tokens.of(viewer, of_all=is_admin)
    me = next(user for user in users if user.id == viewer.user_id)
    return parts.pages.page(
        request,
        "settings/page.html",
        page="settings",
        shell=shell(parts.state, parts.settings),
        is_admin=is_admin,
        has_password=me.password_hash is not None,
        is_local=me.identity is None,
        sessions=session_rows(await accounts.sessions.of(viewer, of_all=is_admin), viewer=viewer),
        tokens=token_rows(tokens),
        scopes=scopes(viewer),
        users=user_rows(users, viewer=viewer) if is_admin else [],
        grants=grant_rows(await accounts.grants.all(), viewer=viewer) if is_admin else [],
        grantees=grantees(users, tokens, viewer=viewer) if is_admin else [],
        granted=[role.value for role in GRANTED],
        followed=sorted({one.name for one in parts.followed.all} - {""}),
        pools=[pool.id for pool in parts.state.report.pools] if parts.state.report else [],
        roles=[role.value for role in Role],
        needs=need_rows(),
        admins=await accounts.users.admins(),
        days=await parts.retention.days(),
        days_range=(SHORTEST_DAYS, LONGEST_DAYS),
        now=parts.clock.wall(),
        providers=providers_view(await look(parts), parts.settings),
        exporters=exporters_view(
            await known_exports(parts),
            parts.settings,
            own_address=own_address(request.headers["host"], parts.settings),
        ),
    )


async def _set_disabled(parts: Parts, viewer: Viewer, user_id: int, *, is_disabled: bool, reason: str) -> Response:
    try:
        name = await parts.accounts.users.set_disabled(user_id, is_disabled=is_disabled, by=viewer, reason=reason)
    except AstraFlowError as problem:
        return _failed("Nothing was changed", problem, at="users")
    return _done(f"{name} is locked out" if is_disabled else f"{name} may come in again", at="users")


def role_of(text: str) -> Role:
    """The role of that name, as a form sends it. Raises: InvalidInput."""
    role = Role.named(text)
    if role is None:
        raise InvalidInput(f"there is no role {text[:40]!r}; known: {', '.join(role.value for role in Role)}")
    return role


def _invitation(request: Request, parts: Parts, name: str, token: str) -> Response:
    return _secret(
        request,
        parts,
        title=f"A login link for {name}",
        sentence="It works once, for 24 hours. Send it to nobody else: who opens it comes in, and chooses a password.",
        secret=f"{own_address(request.headers['host'], parts.settings)}/login?token={token}",
        back="/settings#users",
    )


def _secret(request: Request, parts: Parts, *, title: str, sentence: str, secret: str, back: str) -> Response:
    return parts.pages.page(
        request,
        "settings/secret.html",
        page="settings",
        shell=shell(parts.state, parts.settings),
        title=title,
        sentence=sentence,
        secret=secret,
        back=back,
    )


def _ask(request: Request, parts: Parts, *, title: str, sentence: str, button: str) -> Response:
    return parts.pages.page(
        request,
        "confirm.html",
        page="settings",
        shell=shell(parts.state, parts.settings),
        title=title,
        sentence=sentence,
        action=request.url.path,
        button=button,
        back="/settings",
        tone="bad",
    )


def _done(text: str, *, at: str) -> Response:
    return told(Flash(text=text, tone="good"), back=f"/settings#{at}")


def _failed(what: str, problem: AstraFlowError, *, at: str) -> Response:
    return told(Flash(text=f"{what}: {problem}", tone="bad"), back=f"/settings#{at}")
