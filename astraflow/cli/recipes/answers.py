"""Program that answers the requests of the page about recipes, so that each of its checks needs no start of a process.

It reads one JSON object per line and answers in any order (`astraflow.runtime.processes.requests`). What the form of a
recipe may need later, such as torch for the options of a trainer's backend, is imported once it has been shown.
"""

import json
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from astraflow.cli.recipes.cards import LOOPBACK, recipe_card, recipe_cards
from astraflow.cli.recipes.fleet_form import FleetProgram, Inspect, inspect_once
from astraflow.cli.recipes.form import recipe_form
from astraflow.cli.recipes.override_limits import Limits
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.launching import RecipeCard, RecipeForm
from astraflow.recipe.loading import Check, load_recipe
from astraflow.recipe.plugins import plugin_specs
from astraflow.runtime.processes.requests import Answers

THREADS = 2
"""Requests that are answered at a time: the form of a recipe does not wait for the list of all."""

_CARD, _CARDS = TypeAdapter(RecipeCard), TypeAdapter(list[RecipeCard])
_FORM = TypeAdapter(RecipeForm)


def serve() -> None:
    """Answers requests until the standard input ends."""
    answers, lock, fleet = Answers(), threading.Lock(), FleetProgram()

    def respond(request: dict[str, Any]) -> None:
        number = request.pop("number")
        values = answer(request, inspect=fleet.inspect)
        with lock:
            answers.send(number, **values)
        if request["operation"] == "form" and "problem" not in values:
            _import_heavy_plugins(request["recipe"])

    with ThreadPoolExecutor(THREADS) as threads:
        for line in sys.stdin:
            threads.submit(respond, json.loads(line))
    fleet.close()


def answer(request: Mapping[str, Any], *, inspect: Inspect = inspect_once) -> dict[str, Any]:
    """Returns the answer to a request, or its problem with its code."""
    operations: dict[str, Callable[[], Any]] = {
        "card": lambda: _CARD.dump_python(recipe_card(request["recipe"], _folders(request)), mode="json"),
        "cards": lambda: _CARDS.dump_python(recipe_cards(_folders(request)), mode="json"),
        "form": lambda: _FORM.dump_python(_form(request, inspect), mode="json"),
    }
    try:
        return {"answer": operations[request["operation"]]()}
    except AstraFlowError as problem:
        return {"problem": str(problem), "code": problem.code, "type": type(problem).__name__}
    except RecursionError:
        return {"problem": "cannot read the recipe: it is nested too deeply; use fewer levels", "code": "file.invalid"}
    except Exception as problem:
        sys.excepthook(type(problem), problem, problem.__traceback__)
        text = f"cannot read the recipe: {type(problem).__name__}: {problem}; the log of the page has the traceback"
        return {"problem": text, "code": "recipe.failed"}


def _form(request: Mapping[str, Any], inspect: Inspect) -> RecipeForm:
    role = request.get("role", "")
    return recipe_form(
        request["recipe"],
        request.get("overrides", ()),
        text=request.get("text"),
        folders=_folders(request),
        host=request.get("host") or LOOPBACK,
        limits=Limits(role=role, data_locations=tuple(request.get("data", ()))) if role else None,
        inspect=inspect,
    )


def _folders(request: Mapping[str, Any]) -> list[Path]:
    return [Path(folder) for folder in request.get("folders", ())]


def _import_heavy_plugins(location: str) -> None:
    """Imports the modules of the recipe's plugins that take seconds; the checks of their options need them."""
    for _, registry, spec in plugin_specs(load_recipe(location, check=Check.NONE)):
        kind = str(spec.get("kind"))
        if registry.is_heavy(kind):
            try:
                registry.options(kind)
            except InvalidInput:  # the check of a changed option reports it
                continue


if __name__ == "__main__":
    serve()
