"""List of the launch page: recipes with picture, needs, and why this machine cannot run them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from astraflow.contract.launching import RecipeCard, RecipeNeeds, RecipePicture
from web.components.formats import duration, several

MAX_POLICIES = 3
"""Policies that a picture names; further ones are counted."""

PICTURE_WIDTH = 300
BOX_WIDTH, BOX_HEIGHT = 82, 24
_ROW = 28
_CAPTION_HEIGHT = 16
_MARGIN = 2
_MAX_LETTERS = 15
"""Letters that fit a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureBox:
    """Box of a picture with its text."""

    kind: str
    """`prompts`, `policy`, `world` or `reward`; selects the colour."""
    x: int
    y: int
    text: str
    width: int = BOX_WIDTH
    height: int = BOX_HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureCaption:
    """Caption of a column of boxes."""

    x: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureView:
    """Picture of a recipe: prompts go to policies, which may act in a world, and their answers get a reward."""

    boxes: tuple[PictureBox, ...]
    arrows: tuple[str, ...]
    """Paths of the arrows."""
    captions: tuple[PictureCaption, ...]
    height: int
    text: str
    """Content of the picture in words."""

    @property
    def view_box(self) -> str:
        """Visible part of the drawing, with room for the lines of its boxes."""
        return f"{-_MARGIN} 0 {PICTURE_WIDTH + 2 * _MARGIN} {self.height}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCardView:
    """Card of one recipe."""

    recipe: RecipeCard
    hardware: str
    time: str
    picture: PictureView
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
    picture = card.picture
    parts = (*picture.prompts, *picture.policies, picture.workflow, picture.world, picture.reward)
    return " ".join((card.name, card.summary, card.shows, *parts)).lower()


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
        picture=_picture(card.picture),
        is_favourite=is_favourite,
    )


def _picture(picture: RecipePicture) -> PictureView:
    named = [*picture.policies[:MAX_POLICIES]]
    if len(picture.policies) > MAX_POLICIES:
        named[-1] = f"{len(picture.policies) - MAX_POLICIES + 1} more policies"
    rows = len(named) + bool(picture.world)
    height = _CAPTION_HEIGHT + rows * _ROW
    middle, right = (PICTURE_WIDTH - BOX_WIDTH) // 2, PICTURE_WIDTH - BOX_WIDTH
    side = _row(0) + (len(named) - 1) * _ROW // 2
    prompts, reward = _box("prompts", 0, side, " + ".join(picture.prompts)), _box("reward", right, side, picture.reward)
    policies = [_box("policy", middle, _row(row), name) for row, name in enumerate(named)]
    arrows = [path for policy in policies for path in (_curve(prompts, policy), _curve(policy, reward))]
    worlds = [_box("world", middle, _row(len(named)), picture.world)] if picture.world else []
    for world in worlds:  # an action goes down, an observation comes up
        centre, above = PICTURE_WIDTH // 2, world.y - _ROW + BOX_HEIGHT
        arrows += [f"M{centre - 8} {above}V{world.y}", f"M{centre + 8} {world.y}V{above}"]
    noun = "policy" if len(picture.policies) == 1 else "policies"
    return PictureView(
        boxes=(prompts, *policies, reward, *worlds),
        arrows=tuple(arrows),
        captions=tuple(
            PictureCaption(x=x + BOX_WIDTH // 2, text=text)
            for x, text in ((0, "prompts"), (middle, noun), (right, "reward"))
        ),
        height=height,
        text=_words(picture, noun),
    )


def _row(number: int) -> int:
    """Returns the upper edge of a row."""
    return _CAPTION_HEIGHT + number * _ROW + (_ROW - BOX_HEIGHT) // 2


def _box(kind: str, x: int, y: int, text: str) -> PictureBox:
    short = text if len(text) <= _MAX_LETTERS else f"{text[: _MAX_LETTERS - 1]}…"
    return PictureBox(kind=kind, x=x, y=y, text=short)


def _curve(source: PictureBox, target: PictureBox) -> str:
    x, to_x = source.x + BOX_WIDTH, target.x
    y, to_y, half = source.y + BOX_HEIGHT // 2, target.y + BOX_HEIGHT // 2, (x + to_x) // 2
    return f"M{x} {y}C{half} {y} {half} {to_y} {to_x} {to_y}"


def _words(picture: RecipePicture, noun: str) -> str:
    world = f" in {picture.world}" if picture.world else ""
    prompts, policies = ", ".join(picture.prompts), ", ".join(picture.policies)
    return f"Prompts: {prompts}. {noun.capitalize()}: {policies}{world}. Reward: {picture.reward}."
