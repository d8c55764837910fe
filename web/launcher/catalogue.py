"""Catalogue of recipes that can be launched, each as a form."""

import asyncio
import json
import re
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from astraflow.contract.errors import DeadlineExceeded, InvalidInput
from astraflow.contract.launching import FormField, RecipeCard, RecipeForm, RecipePreflight
from astraflow.runtime.clock import Clock
from astraflow.runtime.processes.child import run_command
from web.launcher.environments import child_environment
from web.launcher.recipe_program import RecipeProgram

CLI_COMMAND = (sys.executable, "-m", "astraflow.cli")


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

_CARD = TypeAdapter(RecipeCard)
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
        self._data = tuple(data)
        self._clock = clock
        self._host = join_host
        self._preflight_slots = asyncio.Semaphore(MAX_CONCURRENT_PREFLIGHTS)
        self._folder_names = [str(folder) for folder in folders]
        self._program = RecipeProgram()
        self._answers: OrderedDict[str, tuple[float, Any]] = OrderedDict()
        self._known_cards: tuple[RecipeCard, ...] = ()
        self._cards_at = -inf
        self._reading: asyncio.Task[tuple[RecipeCard, ...]] | None = None

    async def cards(self) -> tuple[RecipeCard, ...]:
        """Returns the built-in and declared recipes. Raises: InvalidInput, DeadlineExceeded."""
        if self._known_cards and self._clock.now() - self._cards_at <= CACHE_S:
            return self._known_cards
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_cards())
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # the page may have left
        return await asyncio.shield(self._reading)

    async def cards_within(self, limit_s: float) -> tuple[RecipeCard, ...] | None:
        """Returns the recipes, older ones if reading them again takes longer than `limit_s`; None if these do not exist
        yet. Raises: as `cards`."""
        try:
            return await asyncio.wait_for(self.cards(), limit_s)
        except TimeoutError:
            return self._known_cards or None

    async def card(self, name: str) -> RecipeCard:
        """Returns a recipe that can be launched. Raises: InvalidInput for an unknown or a broken recipe."""
        card = next((card for card in self._known_cards if card.name == name and not card.problem), None)
        if card is None:
            request = {"operation": "card", "recipe": name, "folders": self._folder_names}
            card = _CARD.validate_python(await self._program.ask(request))
        if card.problem:
            raise InvalidInput(
                f"cannot launch the recipe {name!r}: {card.problem}; fix it or choose another",
                code="recipe.cannot_launch",
            )
        return card

    async def form(
        self, name_or_path: str, overrides: Sequence[str] = (), *, text: str | None = None, role: str = ""
    ) -> RecipeForm:
        """Returns a recipe's form with overrides applied. name_or_path: of a card, or the snapshot of a known run.

        text: the recipe as edited TOML text, instead of overrides. role: role of the user who chose; without one,
        every override is refused.
        Raises: InvalidInput for a recipe that cannot be read, DeadlineExceeded.
        """
        request: dict[str, Any] = {"operation": "form", "recipe": name_or_path, "folders": self._folder_names}
        request |= {"host": self._host} if self._host else {}
        request |= {"overrides": list(overrides)} if overrides else {}
        request |= {"text": text} if text is not None else {}
        request |= {"role": role or NO_ROLE, "data": list(self._data)} if overrides or text is not None else {}
        return await self._kept(json.dumps(request), lambda: self._form(request))

    async def _form(self, request: Mapping[str, Any]) -> RecipeForm:
        return _FORM.validate_python(await self._program.ask(request))

    async def _read_cards(self) -> tuple[RecipeCard, ...]:
        answer = await self._program.ask({"operation": "cards", "folders": self._folder_names})
        self._known_cards, self._cards_at = _CARDS.validate_python(answer), self._clock.now()
        return self._known_cards

    async def close(self) -> None:
        """Ends the program that reads recipes."""
        await self._program.close()

    async def preflight(self, name_or_path: str, overrides: Sequence[str] = (), *, role: str = "") -> RecipePreflight:
        """Runs the preflight check of a recipe's fleet, or returns a cached result. role: as in `form`.

        Raises: InvalidInput, also for an override that the role may not make, DeadlineExceeded.
        """
        sets = [part for override in overrides for part in ("--set", override)]
        limits = ["--as", role or NO_ROLE, *_options("--data", self._data)] if sets else []
        command = ["recipes", "--json", "--preflight", *_options("--recipes", self._folder_names), *sets, *limits]

        async def run() -> RecipePreflight:
            async with self._preflight_slots:
                return _PREFLIGHT.validate_json(await cli_output([*command, "--", name_or_path], timeout_s=TIMEOUT_S))

        return await self._kept(json.dumps([*command, name_or_path]), run)

    async def _kept(self, key: str, read: Callable[[], Awaitable[T]]) -> T:
        """Returns the answer of `read`, or an earlier one with this key, which is kept for a while."""
        read_at, value = self._answers.get(key, (-inf, None))
        if self._clock.now() - read_at > CACHE_S:
            value = await read()
            self._answers[key] = self._clock.now(), value
            while len(self._answers) > MAX_CACHED:
                self._answers.popitem(last=False)
        known: T = value
        return known


def _options(name: str, values: Sequence[str]) -> list[str]:
    return [part for value in values for part in (name, value)]


def overrides_from(choices: Mapping[str, Any], form: RecipeForm, *, all_values: bool = False) -> list[str]:
    """Returns the choices that differ from the form, as `--set` arguments. all_values: also those that do not differ.

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
        if all_values or text != fields[key].text:
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
