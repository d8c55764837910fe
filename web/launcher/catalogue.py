"""Catalogue of recipes that can be launched, each as a form. The schema comes from the command line."""

import asyncio
import json
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from astraflow.contract.errors import DeadlineExceeded, InvalidInput
from astraflow.contract.launching import FormField, RecipeCard, RecipeForm, RecipePreflight
from astraflow.runtime.clock import Clock
from astraflow.runtime.processes.child import run_command

CLI_COMMAND = (sys.executable, "-m", "astraflow.cli")

WITHHELD_VARIABLES = ("ASTRAFLOW_TOKEN", "ASTRAFLOW_FLEET_TOKEN", "ASTRAFLOW_WEB_DATABASE", "ASTRAFLOW_OIDC_SECRET")
"""Secrets of this process, which runs must not inherit."""

FOLLOW_PARENT = "ASTRAFLOW_FOLLOW_PARENT"
"""Variable that ties a process to its parent; not inherited, because launched runs outlive this process."""


def child_environment() -> dict[str, str]:
    """Returns the environment of child processes."""
    return {name: value for name, value in os.environ.items() if name not in (*WITHHELD_VARIABLES, FOLLOW_PARENT)}


async def cli_output(arguments: Sequence[str], *, timeout_s: float, command: Sequence[str] = CLI_COMMAND) -> str:
    """Returns the output of a command. command: the command line. Raises: InvalidInput with its last error when it
    fails, DeadlineExceeded."""
    try:
        result = await run_command(*command, *arguments, environment=child_environment(), limit_s=timeout_s)
    except TimeoutError:
        raise DeadlineExceeded(
            f"cannot run `astraflow {arguments[0]}`: no result within {timeout_s:g} s; try again", code="cli.timeout"
        ) from None
    if result.code:
        raise InvalidInput(
            result.errors.strip().removeprefix("error: ")
            or f"cannot run `astraflow {arguments[0]}`: exit code {result.code}; run it in a terminal",
            code="cli.failed",
        )
    return result.output


TIMEOUT_S = 60.0
CACHE_S = 30.0
"""Lifetime of a cached answer, in seconds: recipes change only with installs, and each preflight check takes several
calls to a cloud."""
MAX_CONCURRENT_PREFLIGHTS = 2
NO_ROLE = "none"
"""Role that may override nothing."""
MAX_CACHED = 128
"""Maximum number of cached answers. A form is requested while it is filled in and on submission."""


T = TypeVar("T")

_CARDS = TypeAdapter(tuple[RecipeCard, ...])
_FORM = TypeAdapter(RecipeForm)
_PREFLIGHT = TypeAdapter(RecipePreflight)


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
        self._folders = [part for folder in folders for part in ("--recipes", str(folder))]
        self._answers: OrderedDict[tuple[str, ...], tuple[float, Any]] = OrderedDict()

    async def cards(self) -> tuple[RecipeCard, ...]:
        """Returns the built-in and declared recipes. Raises: InvalidInput, DeadlineExceeded."""
        return await self._answer(_CARDS, *self._folders)

    async def card(self, name: str) -> RecipeCard:
        """Returns a recipe that can be launched. Raises: InvalidInput for an unknown or a broken recipe."""
        cards = await self.cards()
        for card in cards:
            if card.name == name and card.problem:
                raise InvalidInput(
                    f"cannot launch the recipe {name!r}: {card.problem}; fix it or choose another",
                    code="recipe.cannot_launch",
                )
            if card.name == name:
                return card
        card_names = ", ".join(card.name for card in cards)
        raise InvalidInput(
            f"cannot launch the recipe {name[:80]!r}: unknown name; use one of {card_names}", code="recipe.unknown"
        )

    async def form(self, name_or_path: str, overrides: Sequence[str] = (), *, role: str = "") -> RecipeForm:
        """Returns a recipe's form with overrides applied. name_or_path: of a card, or the snapshot of a known run.

        role: role of the user who chose; without one, every override is refused.
        Raises: InvalidInput for a recipe that cannot be read, DeadlineExceeded.
        """
        options = [*self._folders, *self._host, *self._override_options(role, overrides)]
        return await self._answer(_FORM, *options, "--", name_or_path)

    async def preflight(self, name_or_path: str, overrides: Sequence[str] = (), *, role: str = "") -> RecipePreflight:
        """Runs the preflight check of a recipe's fleet, or returns a cached result. role: as in `form`.

        Raises: InvalidInput, also for an override that the role may not make, DeadlineExceeded.
        """
        options = ["--preflight", *self._folders, *self._override_options(role, overrides)]
        async with self._preflight_slots:
            return await self._answer(_PREFLIGHT, *options, "--", name_or_path)

    async def _answer(self, answer: TypeAdapter[T], *options: str) -> T:
        """Returns the answer of `astraflow recipes`, which is read again after a while."""
        read_at, value = self._answers.get(options, (-inf, None))
        if self._clock.now() - read_at > CACHE_S:
            value = answer.validate_json(await cli_output(["recipes", "--json", *options], timeout_s=TIMEOUT_S))
            self._answers[options] = self._clock.now(), value
            while len(self._answers) > MAX_CACHED:
                self._answers.popitem(last=False)
        known: T = value
        return known

    def _override_options(self, role: str, overrides: Sequence[str]) -> list[str]:
        """Returns the options for overrides and their permissions; empty without overrides."""
        sets = [part for override in overrides for part in ("--set", override)]
        return [*sets, "--as", role or NO_ROLE, *self._data] if sets else []


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
