"""Saved views: an address of this page under a name, for the user who saved it."""

from collections.abc import Sequence

from sqlmodel import Session, col, select

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from web.accounts.viewer import Viewer
from web.audit.entries import Deed, Trail
from web.db import Database
from web.door.addresses import local_path
from web.tables import SavedView

MOST_VIEWS = 100
LONGEST_NAME = 60
LONGEST_ADDRESS = 2000


class SavedViews:
    """Each user's own; nobody sees or changes those of others."""

    def __init__(self, database: Database, *, clock: Clock, trail: Trail) -> None:
        self._database = database
        self._clock = clock
        self._trail = trail

    async def of(self, user_id: int) -> Sequence[SavedView]:
        """A user's views, by name."""
        return await self._database.look(lambda session: _views(session, user_id))

    async def save(self, viewer: Viewer, name: str, address: str, *, reason: str = "") -> str:
        """Keep an address under a name, in place of what had it; returns the name as kept. Raises: InvalidInput."""
        name = name.strip()
        if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
            raise InvalidInput(f"a view has a name of 1 to {LONGEST_NAME} printable characters, not {name[:80]!r}")
        if len(address) > LONGEST_ADDRESS or local_path(address) != address:
            raise InvalidInput(f"a view is a page of this site, as in /nodes?state=lost, not {address[:80]!r}")
        now = self._clock.wall()

        def write(session: Session) -> None:
            _save(session, viewer.user_id, name, address, now)
            deed = Deed(action="view.save", target=name, after={"address": address}, reason=reason)
            self._trail.append(session, viewer.author, deed)

        await self._database.do(write)
        return name

    async def delete(self, viewer: Viewer, view_id: int, *, reason: str = "") -> str:
        """Forget one of the user's views; returns its name. Raises: InvalidInput when there is none."""

        def write(session: Session) -> str:
            name = _delete(session, viewer.user_id, view_id)
            if name is None:
                raise InvalidInput("there is no such view of yours any more")
            self._trail.append(session, viewer.author, Deed(action="view.delete", target=name, reason=reason))
            return name

        return await self._database.do(write)


def _views(session: Session, user_id: int) -> Sequence[SavedView]:
    return session.exec(select(SavedView).where(SavedView.user_id == user_id).order_by(col(SavedView.name))).all()


def _save(session: Session, user_id: int, name: str, address: str, now: float) -> None:
    own = _views(session, user_id)
    view = next((view for view in own if view.name == name), None)
    if view is None:
        if len(own) >= MOST_VIEWS:
            raise InvalidInput(f"you have {MOST_VIEWS} views, which is all there is room for: delete one first")
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
