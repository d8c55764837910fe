"""Catalogue of recipes that can be launched, each as a form. The schema comes from the command line."""

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
from web.launcher.cli_process import cli_output

TIMEOUT_S = 60.0
CATALOGUE_CACHE_S = 30.0
"""Lifetime of cached recipes and forms, in seconds; recipes change only with installs."""
PREFLIGHT_CACHE_S = 30.0
"""Lifetime of cached preflight checks, in seconds; each takes several calls to a cloud."""
MAX_CONCURRENT_PREFLIGHTS = 2
NO_ROLE = "none"
"""Role that may override nothing."""
MAX_CACHED_FORMS = 64
"""Maximum number of cached forms and preflight checks. A form is requested while it is filled in and on submission."""


class _CliModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class RecipeNeeds(_CliModel):
    """Hardware that a recipe needs on the machine that launches it."""

    gpus: int = 0
    gpu_memory_gb: float = 0.0
    """Memory of each GPU; 0 if any will do."""
    memory_gb: float = 0.0
    disk_gb: float = 0.0


class RecipeObstacle(_CliModel):
    """Reason why this machine cannot run a recipe as it is."""

    cause: str
    remedy: str


class RecipePicture(_CliModel):
    """Parts of a recipe in its picture."""

    prompts: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    workflow: str = ""
    world: str = ""
    """Environment or tools; empty for none."""
    reward: str = ""


class RecipeCard(_CliModel):
    """Summary of a recipe."""

    name: str
    name_or_path: str
    """Argument that launches it: its name, or the file of a declared recipe."""
    summary: str
    simulated: tuple[str, ...]
    problem: str
    """Cause why it cannot be launched; empty when it can."""
    shows: str = ""
    """Purpose of a run; empty if its file has none."""
    minutes: float | None = None
    """Minutes to the stop condition; None if they were not measured."""
    measured_on: str = ""
    needs: RecipeNeeds = RecipeNeeds()
    picture: RecipePicture = RecipePicture()
    obstacles: tuple[RecipeObstacle, ...] = ()
    """Reasons why this machine cannot run it as it is."""


class FormField(_CliModel):
    """One setting of a recipe."""

    key: str
    title: str
    owner: str
    """Policy, flow or pool of the setting; empty for the whole run."""
    kind: Literal["integer", "number", "text", "boolean", "plugins"]
    value: bool | int | float | str | None
    description: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    is_optional: bool
    is_basic: bool
    settable_by: Literal["agent", "operator", "admin", "data_location", "recipe"]
    """Lowest role that may override it; `data_location` for a path below a data folder, `recipe` for no role."""
    entries: tuple[str, ...] = ()
    """Entries of a list of plugins, in TOML with options; `value` lists their kinds, separated by commas."""

    @property
    def text(self) -> str:
        """Value as a form shows it."""
        if self.value is None:
            return ""
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)

    @property
    def rows(self) -> tuple[str, ...]:
        """Kinds of a list of plugins, in order, with an empty one to add another."""
        return (*(kind for kind in self.text.split(", ") if kind), "")


class FormProblem(_CliModel):
    """Problem with a choice."""

    key: str
    message: str


class FormCheck(_CliModel):
    """One check of a form."""

    name: str
    is_ok: bool
    message: str


class PoolEstimate(_CliModel):
    """Pool of the recipe: bounds, provider and price."""

    name: str
    provider: str
    kind: str
    """Kind of the provider."""
    is_remote: bool
    """Whether its instances run on other machines, which have to reach this one."""
    initial_nodes: int
    """Nodes at the start."""
    min_nodes: int
    max_nodes: int
    usd_per_hour_max: float | None
    usd_per_day_max: float | None
    node_usd_per_hour: float | None
    """None while the price is unknown."""
    price_source: str
    """Source of the price."""


class FleetPreflightCheck(_CliModel):
    """Result of one check of a provider."""

    provider: str
    kind: Literal["list", "launch", "price"]
    pool: str
    """Empty for a check that concerns no single pool."""
    is_ok: bool
    message: str
    remedy: str
    """Suggested fix; empty when the check passed."""


class RecipePreflight(_CliModel):
    """Preflight check of the providers of a recipe's fleet. Nothing is started."""

    pools: tuple[PoolEstimate, ...]
    """Pools with prices."""
    checks: tuple[FleetPreflightCheck, ...]


class RecipeForm(_CliModel):
    """A recipe with some settings chosen."""

    name: str
    summary: str
    simulated: tuple[str, ...]
    fields: tuple[FormField, ...]
    problems: tuple[FormProblem, ...]
    refusals: tuple[FormProblem, ...]
    """Overrides that the role may not make; they are also among the problems, and no override was applied."""
    checks: tuple[FormCheck, ...]
    toml: str
    usd_per_hour: float
    has_fleet: bool
    """Whether the recipe defines a fleet, and is meant to be launched with a fleet service."""
    pools: tuple[PoolEstimate, ...]
    """Pools of the fleet; prices are requested separately."""
    usd_per_hour_max: float | None
    """Budget of the fleet; None for unlimited."""
    usd_per_day_max: float | None

    @property
    def pools_elsewhere(self) -> tuple[str, ...]:
        """Pools whose instances run on other machines and have to reach this one."""
        return tuple(pool.name for pool in self.pools if pool.is_remote)


class Catalogue:
    """Recipes that can be launched."""

    def __init__(
        self, *, clock: Clock, folders: Sequence[Path] = (), join_host: str = "", data: Sequence[str] = ()
    ) -> None:
        """folders: folders of recipes besides the built-in ones. join_host: address where remote nodes join.

        data: data folders, below which a path may be chosen.
        """
        self._data = [part for location in data for part in ("--data", location)]
        self._clock = clock
        self._host = ["--host", join_host] if join_host else []
        self._preflight_slots = asyncio.Semaphore(MAX_CONCURRENT_PREFLIGHTS)
        self._preflights: OrderedDict[tuple[str, ...], tuple[float, RecipePreflight]] = OrderedDict()
        self._folders = [part for folder in folders for part in ("--recipes", str(folder))]
        self._cards: tuple[RecipeCard, ...] = ()
        self._cards_read_at: float | None = None
        self._forms: OrderedDict[tuple[str, ...], tuple[float, RecipeForm]] = OrderedDict()

    async def cards(self) -> tuple[RecipeCard, ...]:
        """Returns the built-in and declared recipes. Raises: InvalidInput, DeadlineExceeded."""
        now = self._clock.now()
        if self._cards_read_at is None or now - self._cards_read_at > CATALOGUE_CACHE_S:
            output = json.loads(await cli_output(["recipes", "--json", *self._folders], timeout_s=TIMEOUT_S))
            self._cards = tuple(RecipeCard.model_validate(card) for card in output)
            self._cards_read_at = now
        return self._cards

    async def card(self, name: str) -> RecipeCard:
        """Returns a recipe that can be launched. Raises: InvalidInput for an unknown or a broken recipe."""
        for card in await self.cards():
            if card.name == name and card.problem:
                raise InvalidInput(
                    f"cannot launch the recipe {name!r}: {card.problem}; fix it or choose another",
                    code="recipe.cannot_launch",
                )
            if card.name == name:
                return card
        card_names = ", ".join(card.name for card in self._cards)
        raise InvalidInput(
            f"cannot launch the recipe {name[:80]!r}: unknown name; use one of {card_names}", code="recipe.unknown"
        )

    async def form(self, name_or_path: str, overrides: Sequence[str] = (), *, role: str = "") -> RecipeForm:
        """Returns a recipe's form with overrides applied. name_or_path: of a card, or the snapshot of a known run.

        role: role of the user who chose; without one, every override is refused.
        Raises: InvalidInput for a recipe that cannot be read, DeadlineExceeded.
        """
        cache_key = (role, name_or_path, *overrides)
        cached = self._forms.get(cache_key)
        if cached is None or self._clock.now() - cached[0] > CATALOGUE_CACHE_S:
            command = [
                "recipes",
                "--json",
                *self._folders,
                *self._host,
                *self._override_options(role, overrides),
                "--",
                name_or_path,
            ]
            form = RecipeForm.model_validate(json.loads(await cli_output(command, timeout_s=TIMEOUT_S)))
            cached = self._forms[cache_key] = (self._clock.now(), form)
            _evict_oldest(self._forms)
        return cached[1]

    async def preflight(self, name_or_path: str, overrides: Sequence[str] = (), *, role: str = "") -> RecipePreflight:
        """Runs the preflight check of a recipe's fleet, or returns a cached result. role: as in `form`.

        Raises: InvalidInput, also for an override that the role may not make, DeadlineExceeded.
        """
        cache_key = (role, name_or_path, *overrides)
        async with self._preflight_slots:
            cached = self._preflights.get(cache_key)
            if cached is None or self._clock.now() - cached[0] > PREFLIGHT_CACHE_S:
                command = [
                    "recipes",
                    "--preflight",
                    "--json",
                    *self._folders,
                    *self._override_options(role, overrides),
                    "--",
                    name_or_path,
                ]
                result = RecipePreflight.model_validate(json.loads(await cli_output(command, timeout_s=TIMEOUT_S)))
                cached = self._preflights[cache_key] = (self._clock.now(), result)
                _evict_oldest(self._preflights)
            return cached[1]

    def _override_options(self, role: str, overrides: Sequence[str]) -> list[str]:
        """Returns the options for overrides and their permissions; empty without overrides."""
        sets = [part for override in overrides for part in ("--set", override)]
        return [*sets, "--as", role or NO_ROLE, *self._data] if sets else []


def _evict_oldest(cache: OrderedDict[tuple[str, ...], Any]) -> None:
    """Removes the oldest entries beyond the limit."""
    while len(cache) > MAX_CACHED_FORMS:
        cache.popitem(last=False)


def overrides_from(choices: Mapping[str, Any], form: RecipeForm) -> list[str]:
    """Returns the choices that differ from the form, as `--set` arguments. form: the recipe without overrides.

    Raises: InvalidInput for a setting that the recipe does not have, or a value of several lines.
    """
    fields = {field.key: field for field in form.fields}
    changed = []
    for key, chosen in choices.items():
        text = str(chosen).strip()
        if key not in fields:
            raise InvalidInput(
                f"cannot set {key[:80]!r}: the recipe {form.name!r} has no such setting; choose one from its form",
                code="recipe.unknown_setting",
            )
        if re.search(r"[\x00-\x1f\x7f]", text):
            raise InvalidInput(
                f"cannot set {key!r}: the value has control characters; use one line of text",
                code="recipe.invalid_value",
            )
        if text != fields[key].text:
            changed.append(f"{key}={_toml_value(text, fields[key])}")
    return changed


def _toml_value(text: str, field: FormField) -> str:
    """Returns a value as TOML; values of text fields are always strings."""
    if field.kind == "plugins":
        return _toml_list(text, field)
    if field.kind == "text":
        return json.dumps(text)
    return text if text else '""'


def _toml_list(text: str, field: FormField) -> str:
    """Returns a list of plugins as TOML: unchanged if it is TOML, else from kinds, which keep their known options."""
    if text.startswith("["):
        return text
    entry_by_row = dict(zip(field.rows, field.entries, strict=False))
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    return "[" + ", ".join(entry_by_row.get(kind, "{kind = " + json.dumps(kind) + "}") for kind in kinds) + "]"
