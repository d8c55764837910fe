"""Preferences of users: lists of names, such as pinned charts, favourite recipes and columns of a table."""

import json
from collections.abc import Iterable

from sqlmodel import Session

from web.database.tables import UserPreference


def preferred_names(session: Session, user_id: int, preference: str) -> tuple[str, ...]:
    """Returns the names of a user's preference, in their order; none without one."""
    row = session.get(UserPreference, (user_id, preference))
    return tuple(json.loads(row.value)) if row is not None else ()


def set_preferred_names(session: Session, user_id: int, preference: str, names: Iterable[str]) -> None:
    """Stores the names of a user's preference."""
    session.merge(UserPreference(user_id=user_id, name=preference, value=json.dumps(list(names))))
