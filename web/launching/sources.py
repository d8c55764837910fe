"""Source of a launch: a recipe that is there, or the settings of a run that was launched from here."""

from dataclasses import dataclass

from astraflow.contract.errors import InvalidInput
from web.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a run is made of."""

    name: str
    """Of the recipe, or of the earlier run."""
    place: str
    """As `astraflow run` takes it: a name, or a file."""
    recipe: str = ""
    """The recipe's name; empty for an earlier run's."""
    of: str = ""
    """The earlier run; empty for a recipe."""
    needs_admin: bool = False
    """Whether it has settings that only an admin may override."""


async def source_of(parts: Parts, recipe: str, of: str) -> Source:
    """Returns what to launch: a known recipe, or the snapshot of a run that was launched from here.

    Raises: InvalidInput, UnknownRun.
    """
    if bool(recipe) == bool(of):
        raise InvalidInput("a launch is of a recipe, or `of` an earlier run: name one of them")
    if of:
        launched = await parts.launcher.launch(of)
        if not launched.folder.recipe_file.exists():
            raise InvalidInput(f"the run {of} has no recipe yet: it never began")
        return Source(name=of, place=str(launched.folder.recipe_file), of=of, needs_admin=launched.needs_admin)
    card = await parts.catalogue.card(recipe)
    return Source(name=card.name, place=card.place, recipe=card.name)
