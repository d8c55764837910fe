"""Favourite recipes of each person."""

import json

from sqlmodel import Session

from astraflow.contract.errors import InvalidInput
from web.database.tables import UserPreference

MAX_FAVOURITES = 100
"""Favourites of one person. Count."""

_NAME = "favourite_recipes"


def favourites(session: Session, user_id: int) -> frozenset[str]:
    """Returns the names of a person's favourite recipes."""
    preference = session.get(UserPreference, (user_id, _NAME))
    return frozenset(json.loads(preference.value)) if preference is not None else frozenset()


def set_favourite(session: Session, user_id: int, recipe: str, *, is_favourite: bool) -> None:
    """Makes a recipe a favourite of a person, or none. Idempotent. Raises: InvalidInput for one too many."""
    names = favourites(session, user_id) - {recipe} | ({recipe} if is_favourite else set())
    if len(names) > MAX_FAVOURITES:
        raise InvalidInput(
            f"cannot star the recipe {recipe!r}: you have {MAX_FAVOURITES} favourites; remove one",
            code="launch.too_many_favourites",
        )
    session.merge(UserPreference(user_id=user_id, name=_NAME, value=json.dumps(sorted(names))))
