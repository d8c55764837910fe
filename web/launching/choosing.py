"""Choice of a launch: a recipe, or the settings of an earlier run, with overrides. Nothing is started.

The form, its preview, the rehearsal, the API, clones and launches all come through `chosen`, which refuses what the
user's role may not override before a provider or the environment is touched, and enters previews and refusals in the
audit.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from astraflow.contract.errors import AstraFlowError
from web.accounts.viewer import Viewer
from web.audit.entries import Deed
from web.launching.catalogue import FormProblem, RecipeForm, overrides_from
from web.launching.options import LaunchOptions, reachable
from web.launching.sources import Source
from web.parts import Parts
from web.present.launches import LaunchChoice

ONLY_ADMINS = FormProblem(
    key="",
    message="the earlier run has settings that only an admin may override, so only an admin launches another like it; "
    "launch its recipe, or ask an admin",
)


class Purpose(Enum):
    """What a choice is made for, as the audit names it."""

    PREVIEW = "run.preview"
    REHEARSE = "run.rehearse"
    """Its providers are asked."""
    LAUNCH = "run.launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a user asks for."""

    source: Source
    values: Mapping[str, str]
    """Settings as a form has them, by their keys."""
    options_from: Callable[[LaunchOptions], LaunchOptions]
    """How it is started, given what is usual."""
    key: str = ""
    """The launch's own; empty for a new one."""
    reason: str = ""


async def chosen(parts: Parts, viewer: Viewer, wish: Wish, purpose: Purpose) -> LaunchChoice:
    """Returns the choice, with what is wrong with it and what is refused; nothing refused is applied.

    Raises: InvalidInput for a recipe that cannot be read at all.
    """
    choice = await _composed(parts, viewer, wish)
    if choice.refusals or purpose is not Purpose.LAUNCH:  # a launch that goes on is entered when it has begun
        await parts.trail.note(viewer.author, _deed(choice, wish, purpose))
    if purpose is Purpose.REHEARSE:
        return await _with_providers(parts, choice)
    return choice


async def plain(parts: Parts, viewer: Viewer, source: Source) -> LaunchChoice:
    """Returns the choice of a recipe as it is, for a page that is looked at: nothing is asked and nothing entered."""
    return await _composed(parts, viewer, Wish(source=source, values={}, options_from=lambda usual: usual))


def written(value: object) -> str:
    """A setting as the form has it."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


async def _composed(parts: Parts, viewer: Viewer, wish: Wish) -> LaunchChoice:
    source, role = wish.source, viewer.role_at(viewer.at).value
    plain = await parts.catalogue.form(source.place)
    usual = await _usual_options(parts, plain, source.of)
    form, options, problem = plain, usual, ""
    overrides: list[str] = []
    try:
        form, overrides = await _settled(parts, source.place, plain, wish.values, role)
        options = reachable(wish.options_from(usual), form, parts.settings)
    except AstraFlowError as trouble:
        problem = str(trouble)
    return LaunchChoice(
        source=source,
        form=_filled(form, plain, wish.values),
        overrides=tuple(overrides),
        options=options,
        problem=problem,
        refusals=(*form.refusals, *([ONLY_ADMINS] if source.needs_admin and role != "admin" else [])),
        role=role,
        places=parts.settings.data,
        key=wish.key or secrets.token_hex(12),
    )


def _deed(choice: LaunchChoice, wish: Wish, purpose: Purpose) -> Deed:
    """The attempt, as the audit keeps it: with what was asked, also when it was refused."""
    after = {"set": " ".join(choice.overrides)} if choice.overrides else {}
    if choice.refusals:
        after["problem"] = choice.refused
    result = "refused" if choice.refusals else "done"
    return Deed(action=purpose.value, target=choice.source.place, after=after, result=result, reason=wish.reason)


async def _with_providers(parts: Parts, choice: LaunchChoice) -> LaunchChoice:
    """With what its providers say, if it has any to ask."""
    if not choice.is_asking:
        return choice
    try:
        rehearsed = await parts.catalogue.rehearsal(choice.source.place, choice.overrides, role=choice.role)
        return replace(choice, rehearsed=rehearsed)
    except AstraFlowError as trouble:
        return replace(choice, rehearsal_problem=str(trouble))


async def _usual_options(parts: Parts, form: RecipeForm, of: str) -> LaunchOptions:
    """How a run is started when nothing else is asked: as the earlier one was, else as its recipe asks."""
    return (await parts.launcher.launch(of)).options if of else LaunchOptions(has_fleet=form.has_fleet)


async def _settled(
    parts: Parts, place: str, plain: RecipeForm, values: Mapping[str, str], role: str
) -> tuple[RecipeForm, list[str]]:
    """A recipe with settings, whatever is wrong with it, and what they change, as `--set` takes it.

    What another kind of plug-in can be told is known once it is chosen. Raises: InvalidInput for an unknown setting.
    """
    known = {field.key for field in plain.fields}
    overrides = overrides_from({key: text for key, text in values.items() if key in known}, plain)
    form = await parts.catalogue.form(place, overrides, role=role) if overrides else plain
    if form.refusals:
        return form, overrides
    if others := overrides_from({key: text for key, text in values.items() if key not in known}, form):
        overrides += others
        form = await parts.catalogue.form(place, overrides, role=role)
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
