"""The recipes that can be launched, and each as a form: asked of the command line, which knows their schema."""

import asyncio
import json
import re
from collections import OrderedDict
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
REHEARSAL_KEPT_S = 30.0
"""Each is several calls of a cloud."""
REHEARSALS_AT_ONCE = 2
NO_ROLE = "none"
"""Role that may override nothing."""
MOST_KEPT = 64
"""Forms and rehearsals: a form is asked for as it is filled in, and again when it is sent."""


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
    kind: Literal["whole", "number", "text", "yes_no", "plugins"]
    value: bool | int | float | str | None
    description: str
    least: float | None
    most: float | None
    choices: tuple[str, ...]
    is_optional: bool
    is_short: bool
    set_by: Literal["agent", "operator", "admin", "place", "recipe"]
    """Least role that may override it; `place` for a path below a data place, `recipe` for none."""
    entries: tuple[str, ...] = ()
    """Of a list of plug-ins: each in TOML, with its options; `value` has their kinds, separated by commas."""

    @property
    def text(self) -> str:
        """The value as a form shows it."""
        if self.value is None:
            return ""
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)

    @property
    def rows(self) -> tuple[str, ...]:
        """Of a list of plug-ins: the kinds in their order, and an empty one for one more."""
        return (*(kind for kind in self.text.split(", ") if kind), "")


class FormProblem(_Read):
    """Something wrong with the choices."""

    key: str
    message: str


class FormCheck(_Read):
    """One thing that was looked at."""

    what: str
    is_good: bool
    message: str


class PoolOffer(_Read):
    """A pool of the recipe: how many machines, from whom, at what price."""

    name: str
    provider: str
    kind: str
    """Of the provider."""
    is_elsewhere: bool
    """Its machines are others than this one, and have to reach it."""
    first_nodes: int
    """It begins with so many."""
    min_nodes: int
    max_nodes: int
    usd_per_hour_max: float | None
    usd_per_day_max: float | None
    node_usd_per_hour: float | None
    """None as long as nobody has said."""
    price_source: str
    """Who has said it."""


class FleetCheck(_Read):
    """One thing that a provider was asked."""

    provider: str
    kind: Literal["list", "launch", "price"]
    pool: str
    """Empty for what is of no pool in particular."""
    is_ok: bool
    message: str
    to_do: str
    """What would help; empty when nothing has to."""


class Rehearsed(_Read):
    """What the providers of a recipe's fleet say; nothing was started."""

    pools: tuple[PoolOffer, ...]
    """With prices."""
    checks: tuple[FleetCheck, ...]


class RecipeForm(_Read):
    """A recipe with some choices made."""

    name: str
    summary: str
    simulated: tuple[str, ...]
    fields: tuple[FormField, ...]
    problems: tuple[FormProblem, ...]
    refusals: tuple[FormProblem, ...]
    """Settings that the role may not override so; they are among the problems, and no override was applied."""
    checks: tuple[FormCheck, ...]
    toml: str
    usd_per_hour: float
    has_fleet: bool
    """It says where machines come from: it is meant to be launched with a fleet service."""
    pools: tuple[PoolOffer, ...]
    """Its pools, if it has a fleet; prices are asked for apart."""
    usd_per_hour_max: float | None
    """The fleet's budget; None for unbounded."""
    usd_per_day_max: float | None

    @property
    def pools_elsewhere(self) -> tuple[str, ...]:
        """Pools whose machines have to reach this one."""
        return tuple(pool.name for pool in self.pools if pool.is_elsewhere)


class Catalogue:
    """What there is to launch."""

    def __init__(
        self, *, clock: Clock, folders: Sequence[Path] = (), join_host: str = "", data: Sequence[str] = ()
    ) -> None:
        """folders: of recipes besides those that come with AstraFlow. join_host: where machines elsewhere join.

        data: data places, below which a path may be chosen.
        """
        self._data = [part for place in data for part in ("--data", place)]
        self._clock = clock
        self._host = ["--host", join_host] if join_host else []
        self._asking = asyncio.Semaphore(REHEARSALS_AT_ONCE)
        self._rehearsed: OrderedDict[tuple[str, ...], tuple[float, Rehearsed]] = OrderedDict()
        self._folders = [part for folder in folders for part in ("--recipes", str(folder))]
        self._cards: tuple[RecipeCard, ...] = ()
        self._asked_at: float | None = None
        self._forms: OrderedDict[tuple[str, ...], tuple[float, RecipeForm]] = OrderedDict()

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

    async def form(self, place: str, overrides: Sequence[str] = (), *, role: str = "") -> RecipeForm:
        """A recipe's form with choices. `place` is that of a `card`, or the snapshot of a known run.

        role: of the user who chose; without one, every override is refused.
        Raises: InvalidInput for a recipe that cannot be read at all, DeadlineExceeded.
        """
        asked = (role, place, *overrides)
        kept = self._forms.get(asked)
        if kept is None or self._clock.now() - kept[0] > CARDS_KEPT_S:
            command = ["recipes", "--json", *self._folders, *self._host, *self._limited(role, overrides), "--", place]
            form = RecipeForm.model_validate(json.loads(await output_of(command, timeout_s=TIMEOUT_S)))
            kept = self._forms[asked] = (self._clock.now(), form)
            _forget(self._forms)
        return kept[1]

    async def rehearsal(self, place: str, overrides: Sequence[str] = (), *, role: str = "") -> Rehearsed:
        """What the providers of a recipe's fleet say, now or a moment ago. role: as in `form`.

        Raises: InvalidInput, also for what the role may not override, DeadlineExceeded.
        """
        asked = (role, place, *overrides)
        async with self._asking:
            kept = self._rehearsed.get(asked)
            if kept is None or self._clock.now() - kept[0] > REHEARSAL_KEPT_S:
                command = [
                    "recipes",
                    "--rehearse",
                    "--json",
                    *self._folders,
                    *self._limited(role, overrides),
                    "--",
                    place,
                ]
                found = Rehearsed.model_validate(json.loads(await output_of(command, timeout_s=TIMEOUT_S)))
                kept = self._rehearsed[asked] = (self._clock.now(), found)
                _forget(self._rehearsed)
            return kept[1]

    def _limited(self, role: str, overrides: Sequence[str]) -> list[str]:
        """Overrides, and what limits them; without any there is nothing to limit."""
        sets = [part for override in overrides for part in ("--set", override)]
        return [*sets, "--as", role or NO_ROLE, *self._data] if sets else []


def _forget(kept: OrderedDict[tuple[str, ...], Any]) -> None:
    """The oldest of too many."""
    while len(kept) > MOST_KEPT:
        kept.popitem(last=False)


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
    if field.kind == "plugins":
        return _written_list(text, field)
    if field.kind == "text":
        return json.dumps(text)
    return text if text else '""'


def _written_list(text: str, field: FormField) -> str:
    """A list of plug-ins: as TOML as it is, or kinds, of which those that were there keep their options."""
    if text.startswith("["):
        return text
    known = dict(zip(field.rows, field.entries, strict=False))
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    return "[" + ", ".join(known.get(kind, "{kind = " + json.dumps(kind) + "}") for kind in kinds) + "]"
