"""List of the launch page: recipes with parts, needs, and why this machine cannot run them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from astraflow.contract.launching import RecipeCard, RecipeNeeds
from web.components.formats import duration, several


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCardView:
    """Card of one recipe."""

    recipe: RecipeCard
    hardware: str
    time: str
    is_favourite: bool
    """Whether the viewer starred it."""

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run it as it is, as far as is known."""
        return not self.recipe.problem and not self.recipe.obstacles


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeGroup:
    """Recipes of one part of the list."""

    title: str
    cards: tuple[RecipeCardView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeList:
    """Recipes that match a search: favourites, own ones, those that run here, and those that cannot."""

    groups: tuple[RecipeGroup, ...]
    """Groups with recipes, in this order."""
    unrunnable: tuple[RecipeCardView, ...]
    """Recipes that this machine cannot run as they are, and that are neither favourites nor own ones."""
    total: int
    runnable: int
    """Recipes that this machine can run, of all."""
    search_text: str

    @property
    def is_empty(self) -> bool:
        """Whether no recipe matches."""
        return not self.groups and not self.unrunnable


def recipe_list(cards: Sequence[RecipeCard], *, search_text: str = "", favourites: Collection[str] = ()) -> RecipeList:
    """Returns the recipes that have every word of a text in their name, summary, purpose or parts."""
    views = [_card(card, is_favourite=card.name in favourites) for card in cards]
    words = search_text.lower().split()
    shown = [view for view in views if all(word in _searched_text(view.recipe) for word in words)]
    starred = tuple(view for view in shown if view.is_favourite)
    own = tuple(view for view in shown if view.recipe.is_own and not view.is_favourite)
    others = [view for view in shown if not view.is_favourite and not view.recipe.is_own]
    here = tuple(view for view in others if view.runs_here)
    groups = (("Favourites", starred), ("Your recipes", own), ("Run on this machine", here))
    return RecipeList(
        groups=tuple(RecipeGroup(title=title, cards=group) for title, group in groups if group),
        unrunnable=tuple(view for view in others if not view.runs_here),
        total=len(views),
        runnable=sum(view.runs_here for view in views),
        search_text=search_text,
    )


def _searched_text(card: RecipeCard) -> str:
    parts = card.parts
    names = (*parts.prompts, *parts.policies, parts.workflow, parts.world, parts.reward)
    return " ".join((card.name, card.summary, card.shows, *names)).lower()


def hardware_text(needs: RecipeNeeds) -> str:
    """Returns the hardware as text.

    >>> hardware_text(RecipeNeeds(gpus=8, gpu_memory_gb=80, memory_gb=64, disk_gb=200))
    '8 GPUs with 80 GB each, at least 64 GB of memory and 200 GB of disk'
    >>> hardware_text(RecipeNeeds(memory_gb=1.5, disk_gb=1))
    'no GPU, at least 1.5 GB of memory and 1 GB of disk'
    """
    if not needs.gpus:
        gpus = "no GPU"
    elif needs.gpu_memory_gb:
        gpus = f"{several(needs.gpus, 'GPU')} with {needs.gpu_memory_gb:g} GB{' each' if needs.gpus > 1 else ''}"
    else:
        gpus = several(needs.gpus, "GPU")
    return f"{gpus}, at least {needs.memory_gb:g} GB of memory and {needs.disk_gb:g} GB of disk"


def _card(card: RecipeCard, *, is_favourite: bool) -> RecipeCardView:
    measured_on = f" on {card.measured_on}" if card.measured_on else ""
    return RecipeCardView(
        recipe=card,
        hardware=hardware_text(card.needs),
        time=f"about {duration(card.minutes * 60)}{measured_on}" if card.minutes else "not measured",
        is_favourite=is_favourite,
    )
