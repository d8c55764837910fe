"""`astraflow recipes`: the packaged recipes and those of your folders, and the settings of one recipe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.cli.options import Overrides

if TYPE_CHECKING:
    from astraflow.contract.launching import RecipeCard


def recipes(
    recipe: Annotated[str, typer.Argument(help="Show the settings of this recipe.")] = "",
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    folders: Annotated[
        list[Path], typer.Option("--recipes", metavar="DIR", help="Folder with your own recipes; may be repeated.")
    ] = [],  # noqa: B006 (the same)
    host: Annotated[
        str, typer.Option(help="Address for nodes on other machines; its ports are checked.")
    ] = "127.0.0.1",
    preflight: Annotated[
        bool,
        typer.Option(
            "--preflight", help="Check prices and permissions with the providers of the recipe; starts nothing."
        ),
    ] = False,
    role: Annotated[
        str, typer.Option("--as", metavar="ROLE", help="Refuse overrides that this role may not make on the page.")
    ] = "",
    data: Annotated[
        list[str], typer.Option("--data", metavar="LOCATION", help="With --as: a data location; may be repeated.")
    ] = [],  # noqa: B006 (the same)
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all data for a form.")] = False,
) -> None:
    """List the packaged recipes and the recipes in your folders, or the settings of one recipe."""
    from pydantic import TypeAdapter
    from rich.console import Console
    from rich.table import Table

    from astraflow.cli.recipes.cards import recipe_cards
    from astraflow.cli.recipes.form import preflight_recipe, recipe_form
    from astraflow.cli.recipes.override_limits import Limits
    from astraflow.contract.launching import RecipeCard, RecipeForm, RecipePreflight

    limits = Limits(role=role, data_locations=tuple(data)) if role else None
    if recipe and preflight:
        content: RecipePreflight | RecipeForm | list[RecipeCard] = (
            result := preflight_recipe(recipe, overrides, folders=folders, limits=limits)
        )
        table = Table("provider", "pool", "check", "result", box=None)
        for check in result.checks:
            text = check.message if check.is_ok else f"{check.message}. {check.remedy}"
            table.add_row(check.provider, check.pool, check.kind.value, text)
    elif recipe:
        form = recipe_form(recipe, overrides, folders=folders, host=host, limits=limits)
        table = Table("setting", "value", "description", box=None)
        for field in form.fields:
            table.add_row(field.key, field.text, field.description)
        content = form
    else:
        cards = recipe_cards(folders)
        table = Table("recipe", "description", "this machine", box=None)
        for card in cards:
            table.add_row(card.name, card.problem or card.summary, _fit(card))
        content = cards
    if as_json:
        print(TypeAdapter(type(content)).dump_json(content).decode())  # noqa: T201 (machine-readable output)
    else:
        Console().print(table)


def _fit(card: "RecipeCard") -> str:
    """Returns the first reason why this machine cannot run a recipe, and how many more there are; empty for none."""
    if not card.obstacles:
        return ""
    first, *more = [obstacle.cause for obstacle in card.obstacles]
    return f"no: {first}" + (f" (and {len(more)} more: astraflow check recipe {card.name})" if more else "")
