"""Saved views: named page addresses of a user."""

from collections.abc import Sequence

from sqlmodel import Session, col, select

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from web.accounts.viewer import Viewer
from web.database.db import Database
from web.database.tables import SavedView
from web.security.addresses import local_path
from web.security.audit_log import AuditedCommand, AuditLog

MAX_VIEWS = 100
MAX_NAME_CHARS = 60
MAX_ADDRESS_CHARS = 2000


class SavedViews:
    """Saved views per user; users can neither see nor change the views of others."""

    def __init__(self, database: Database, *, clock: Clock, audit_log: AuditLog) -> None:
        self._database = database
        self._clock = clock
        self._audit_log = audit_log

    async def of(self, user_id: int) -> Sequence[SavedView]:
        """Returns a user's views, by name."""
        return await self._database.read(lambda session: _views(session, user_id))

    async def save(self, viewer: Viewer, name: str, address: str, *, reason: str = "") -> str:
        """Saves an address under a name, replacing an earlier one; returns the stored name. Raises: InvalidInput."""
        name = name.strip()
        if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise InvalidInput(
                f"cannot save the view {name[:80]!r}: invalid name; use 1 to {MAX_NAME_CHARS} printable characters",
                code="view.invalid_name",
            )
        if len(address) > MAX_ADDRESS_CHARS or local_path(address) != address:
            raise InvalidInput(
                f"cannot save the view {name!r}: {address[:80]!r} is not a page of this site; use a path such as "
                "/nodes?state=lost",
                code="view.invalid_address",
            )
        now = self._clock.wall()

        def write(session: Session) -> None:
            _save(session, viewer.user_id, name, address, now)
            command = AuditedCommand(action="view.save", target=name, after={"address": address}, reason=reason)
            self._audit_log.append(session, viewer.author, command)

        await self._database.write(write)
        return name

    async def delete(self, viewer: Viewer, view_id: int, *, reason: str = "") -> str:
        """Deletes one of the user's views and returns its name. Raises: InvalidInput for an unknown view."""

        def write(session: Session) -> str:
            name = _delete(session, viewer.user_id, view_id)
            if name is None:
                raise InvalidInput("cannot delete the view: it does not exist; reload the page", code="view.unknown")
            self._audit_log.append(
                session, viewer.author, AuditedCommand(action="view.delete", target=name, reason=reason)
            )
            return name

        return await self._database.write(write)


def _views(session: Session, user_id: int) -> Sequence[SavedView]:
    return session.exec(select(SavedView).where(SavedView.user_id == user_id).order_by(col(SavedView.name))).all()


def _save(session: Session, user_id: int, name: str, address: str, now: float) -> None:
    own = _views(session, user_id)
    view = next((view for view in own if view.name == name), None)
    if view is None:
        if len(own) >= MAX_VIEWS:
            raise InvalidInput(
                f"cannot save the view {name!r}: the limit of {MAX_VIEWS} views is reached; delete one first",
                code="view.limit_reached",
            )
        view = SavedView(user_id=user_id, name=name, address=address, created_at=now)
    view.address = address
    session.add(view)


def _delete(session: Session, user_id: int, view_id: int) -> str | None:
    view = session.get(SavedView, view_id)
    if view is None or view.user_id != user_id:
        return None
    name = view.name
    session.delete(view)
    return name
