"""The recipes that can be launched, and each as a form: asked of the command line, which knows their schema."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from web.launching.command import output_of

TIMEOUT_S = 60.0
CARDS_KEPT_S = 30.0
"""Recipes come and go with installs, seldom."""


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True)


class RecipeCard(_Read):
    """A recipe in a sentence."""

    name: str
    place: str
    """What is launched: its name again, or the file of one that was declared."""
    summary: str
    simulated: tuple[str, ...]
    problem: str
    """Why it cannot be launched; empty when it can."""


class FormField(_Read):
    """One setting."""

    key: str
    title: str
    owner: str
    """The policy, flow or pool that it belongs to; empty for the whole run."""
    kind: Literal["whole", "number", "text", "yes_no"]
    value: bool | int | float | str | None
    description: str
    least: float | None
    most: float | None
    choices: tuple[str, ...]
    is_optional: bool
    is_short: bool

    @property
    def text(self) -> str:
        """The value as a form shows it."""
        if self.value is None:
            return ""
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)


class FormProblem(_Read):
    """Something wrong with the choices."""

    key: str
    message: str


class FormCheck(_Read):
    """One thing that was looked at."""

    what: str
    is_good: bool
    message: str


class RecipeForm(_Read):
    """A recipe with some choices made."""

    name: str
    summary: str
    simulated: tuple[str, ...]
    fields: tuple[FormField, ...]
    problems: tuple[FormProblem, ...]
    checks: tuple[FormCheck, ...]
    toml: str
    usd_per_hour: float
    has_fleet: bool
    """It says where machines come from: it is meant to be launched with a fleet service."""
    pools_elsewhere: tuple[str, ...]
    """Pools whose machines are others than this one, and have to reach it."""


class Catalogue:
    """What there is to launch."""

    def __init__(self, *, clock: Clock, folders: Sequence[Path] = ()) -> None:
        """folders: with recipes besides those that come with AstraFlow."""
        self._clock = clock
        self._folders = [part for folder in folders for part in ("--recipes", str(folder))]
        self._cards: tuple[RecipeCard, ...] = ()
        self._asked_at: float | None = None
        self._plain: dict[str, tuple[float, RecipeForm]] = {}

    async def cards(self) -> tuple[RecipeCard, ...]:
        """Every recipe that comes with AstraFlow or was declared. Raises: InvalidInput, DeadlineExceeded."""
        now = self._clock.now()
        if self._asked_at is None or now - self._asked_at > CARDS_KEPT_S:
            found = json.loads(await output_of(["recipes", "--json", *self._folders], timeout_s=TIMEOUT_S))
            self._cards = tuple(RecipeCard.model_validate(card) for card in found)
            self._asked_at = now
        return self._cards

    async def card(self, name: str) -> RecipeCard:
        """The recipe of that name, which can be launched. Raises: InvalidInput when there is none, or it is broken."""
        for card in await self.cards():
            if card.name == name and card.problem:
                raise InvalidInput(f"the recipe {name} cannot be launched: {card.problem}")
            if card.name == name:
                return card
        known = ", ".join(card.name for card in self._cards)
        raise InvalidInput(f"no recipe is called {name[:80]!r}; known: {known}")

    async def form(self, place: str, overrides: Sequence[str] = ()) -> RecipeForm:
        """A recipe's form with choices. `place` is that of a `card`, or the snapshot of a known run.

        Raises: InvalidInput for a recipe that cannot be read at all, DeadlineExceeded.
        """
        kept = self._plain.get(place)
        if not overrides and kept is not None and self._clock.now() - kept[0] <= CARDS_KEPT_S:
            return kept[1]
        sets = [part for override in overrides for part in ("--set", override)]
        text = await output_of(["recipes", "--json", *self._folders, *sets, "--", place], timeout_s=TIMEOUT_S)
        form = RecipeForm.model_validate(json.loads(text))
        if not overrides:
            self._plain[place] = (self._clock.now(), form)
        return form


def overrides_from(choices: Mapping[str, Any], form: RecipeForm) -> list[str]:
    """What choices change, as `--set` takes it: only those that differ. form: the recipe without any.

    Raises: InvalidInput for a setting that the recipe does not have, or a value that is not one line.
    """
    fields = {field.key: field for field in form.fields}
    changed = []
    for key, chosen in choices.items():
        text = str(chosen).strip()
        if key not in fields:
            raise InvalidInput(f"{key[:80]}: the recipe {form.name} has no such setting")
        if re.search(r"[\x00-\x1f\x7f]", text):
            raise InvalidInput(f"{key}: a value is one line of text")
        if text != fields[key].text:
            changed.append(f"{key}={_written(text, fields[key])}")
    return changed


def _written(text: str, field: FormField) -> str:
    """A value as TOML has it: what stands in a field for text is text, whatever it looks like."""
    if field.kind == "text":
        return json.dumps(text)
    return text if text else '""'
