"""What a launch would be: a recipe, or the recipe of an earlier run, with what somebody chose. Nothing is started.

The form, its preview, the API and what it launches all come through here.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from astraflow.contract.errors import AstraFlowError
from web.launching.acts import Source
from web.launching.catalogue import RecipeForm, overrides_from
from web.launching.options import LaunchOptions, reachable
from web.parts import Parts
from web.present.launches import LaunchChoice


async def chosen(
    parts: Parts,
    source: Source,
    values: Mapping[str, str],
    options_from: Callable[[LaunchOptions], LaunchOptions],
    *,
    key: str = "",
) -> LaunchChoice:
    """The choice, with what is wrong with it.

    values: settings as a form has them, by their keys. options_from: how it is started, given what is usual.
    key: the launch's own; empty for a new one. Raises: InvalidInput for a recipe that cannot be read at all.
    """
    plain = await parts.catalogue.form(source.place)
    usual = await _usual_options(parts, plain, source.of)
    form, options, problem = plain, usual, ""
    overrides: list[str] = []
    try:
        form, overrides = await _settled(parts, source.place, plain, values)
        options = reachable(options_from(usual), form, parts.settings)
    except AstraFlowError as trouble:
        problem = str(trouble)
    return LaunchChoice(
        source=source,
        form=_filled(form, plain, values),
        overrides=tuple(overrides),
        options=options,
        problem=problem,
        key=key or secrets.token_hex(12),
    )


async def with_providers(parts: Parts, choice: LaunchChoice) -> LaunchChoice:
    """With what its providers say, if it has any to ask."""
    if not choice.is_asking:
        return choice
    try:
        return replace(choice, rehearsed=await parts.catalogue.rehearsal(choice.source.place, choice.overrides))
    except AstraFlowError as trouble:
        return replace(choice, rehearsal_problem=str(trouble))


def written(value: object) -> str:
    """A setting as the form has it."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


async def _usual_options(parts: Parts, form: RecipeForm, of: str) -> LaunchOptions:
    """How a run is started when nobody says otherwise: as the earlier one was, else as its recipe asks."""
    return (await parts.launcher.launch(of)).options if of else LaunchOptions(has_fleet=form.has_fleet)


async def _settled(
    parts: Parts, place: str, plain: RecipeForm, values: Mapping[str, str]
) -> tuple[RecipeForm, list[str]]:
    """A recipe with settings, whatever is wrong with it, and what they change, as `--set` takes it.

    What another kind of plug-in can be told is known once it is chosen. Raises: InvalidInput for an unknown setting.
    """
    known = {field.key for field in plain.fields}
    overrides = overrides_from({key: text for key, text in values.items() if key in known}, plain)
    form = await parts.catalogue.form(place, overrides) if overrides else plain
    if others := overrides_from({key: text for key, text in values.items() if key not in known}, form):
        overrides += others
        form = await parts.catalogue.form(place, overrides)
    return form, overrides


def _filled(form: RecipeForm, plain: RecipeForm, values: Mapping[str, str]) -> RecipeForm:
    """The form with the texts that were filled in, also those that make no sense.

    A fleet that makes none has no defaults: the fields stay as they were.
    """
    there = {field.key for field in form.fields}
    shown = (*form.fields, *(field for field in plain.fields if form.problems and field.key not in there))
    fields = tuple(
        field.model_copy(update={"value": values[field.key].strip()}) if field.key in values else field
        for field in shown
    )
    return form.model_copy(update={"fields": fields})
