"""Charts that a user pinned to the top of the pages of runs, in the user's order."""

import json

from sqlmodel import Session

from astraflow.contract.errors import InvalidInput
from web.database.tables import Preference

MAX_PINS = 24
ACTIONS = ("pin", "unpin", "first")


def pinned(session: Session, user_id: int) -> tuple[str, ...]:
    """Returns the names of a user's pinned charts, in order."""
    preference = session.get(Preference, _name(user_id))
    return tuple(json.loads(preference.value)) if preference else ()


def change_pins(session: Session, user_id: int, change: str) -> None:
    """Applies a change such as `pin loss`, `unpin loss` or `first loss`. Raises: InvalidInput for another one."""
    action, _, panel = change.partition(" ")
    if action not in ACTIONS or not panel.isidentifier() or len(panel) > 80:
        raise InvalidInput(
            f"cannot change the pinned charts: unknown change {change[:100]!r}; use {', '.join(ACTIONS)} and a chart",
            code="web.unknown_pin",
        )
    others = [name for name in pinned(session, user_id) if name != panel]
    names = {"pin": [*others, panel], "unpin": others, "first": [panel, *others]}[action]
    session.merge(Preference(name=_name(user_id), value=json.dumps(names[:MAX_PINS])))
    session.commit()


def _name(user_id: int) -> str:
    return f"pinned_charts/{user_id}"
