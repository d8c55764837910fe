"""Charts that a user pinned to the top of the pages of runs, in the user's order."""

from sqlmodel import Session

from astraflow.contract.errors import InvalidInput
from web.database.preferences import preferred_names, set_preferred_names

MAX_PINS = 24
ACTIONS = ("pin", "unpin", "first")
PINS = "pinned_charts"
"""Name of the preference."""


def change_pins(session: Session, user_id: int, change: str) -> None:
    """Applies a change such as `pin loss`, `unpin loss` or `first loss`. Raises: InvalidInput for another one."""
    action, _, panel = change.partition(" ")
    if action not in ACTIONS or not panel.isidentifier() or len(panel) > 80:
        raise InvalidInput(
            f"cannot change the pinned charts: unknown change {change[:100]!r}; use {', '.join(ACTIONS)} and a chart",
            code="web.unknown_pin",
        )
    others = [name for name in preferred_names(session, user_id, PINS) if name != panel]
    names = {"pin": [*others, panel], "unpin": others, "first": [panel, *others]}[action]
    set_preferred_names(session, user_id, PINS, names[:MAX_PINS])
