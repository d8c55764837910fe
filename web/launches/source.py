"""Source of a launch: a recipe, or the settings of an earlier run."""

from dataclasses import dataclass

from astraflow.contract.errors import InvalidInput
from web.requests.context import RequestContext


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSource:
    """Recipe or snapshot from which a run is started."""

    name: str
    """Name of the recipe or of the earlier run."""
    location: str
    """Argument of `astraflow run`: a name or a file."""
    recipe: str = ""
    """Name of the recipe; empty for an earlier run."""
    earlier_run: str = ""
    """Name of the earlier run; empty for a recipe."""
    needs_admin: bool = False
    """Whether it has settings that only an admin may override."""


async def launch_source(context: RequestContext, recipe: str, of: str) -> LaunchSource:
    """Returns the source of a launch: a known recipe, or the snapshot of an earlier run.

    Raises: InvalidInput, UnknownRun.
    """
    if bool(recipe) == bool(of):
        raise InvalidInput(
            "cannot launch a run: needs either `recipe` or `of`; give the name of a recipe or of an earlier run",
            code="launch.invalid_source",
        )
    if of:
        launched = await context.launcher.launch(of)
        if not launched.folder.recipe_file.exists():
            raise InvalidInput(
                f"cannot launch a run like {of!r}: it has no recipe, because it never started; launch its recipe",
                code="launch.no_snapshot",
            )
        return LaunchSource(
            name=of, location=str(launched.folder.recipe_file), earlier_run=of, needs_admin=launched.needs_admin
        )
    card = await context.catalogue.card(recipe)
    return LaunchSource(name=card.name, location=card.name_or_path, recipe=card.name)
