"""Choice of a launch: a recipe, or the settings of an earlier run, with overrides. Nothing is started.

The form, its preview, the preflight check, the API, clones and launches all use `choose_launch`. It refuses overrides
that the user's role may not make before a provider or the environment is used, and logs previews and refusals in the
audit log.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from astraflow.client.local_runs import kept_steps
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.launching import FormProblem, RecipeForm
from astraflow.runtime.folders.run_folders import RunFolder
from web.accounts.viewer import Viewer
from web.launcher.catalogue import overrides_from
from web.launcher.options import LaunchOptions, with_join_address
from web.launches.views import LaunchChoice, LaunchSource
from web.requests.commands import Commands
from web.requests.run_lookup import Launches
from web.security.audit_log import AuditedCommand
from web.security.roles import Role

RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
"""Pattern of names of runs, which are names of folders."""

ONLY_ADMINS = FormProblem(
    key="",
    message="the earlier run has settings that only an admin may override, so only an admin may launch it again; "
    "launch its recipe, or ask an admin",
)


class Purpose(Enum):
    """Purpose of a choice, as the audit log names it."""

    PREVIEW = "run.preview"
    PREFLIGHT = "run.preflight"
    """Checks the providers."""
    LAUNCH = "run.launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """Launch that a user requests."""

    source: LaunchSource
    values: Mapping[str, str]
    """Settings as form texts, by key."""
    options_from: Callable[[LaunchOptions], LaunchOptions]
    """Returns the start options, given the default ones."""
    text: str | None = None
    """The whole recipe as TOML text, to which `values` were applied; None for the unchanged recipe."""
    is_text_edited: bool = False
    """Whether the text was edited after the values, which are then ignored."""
    key: str = ""
    """Idempotency key of the launch; empty for a new one."""
    reason: str = ""


async def choose_launch(
    launches: Launches, commands: Commands, request: LaunchRequest, purpose: Purpose
) -> LaunchChoice:
    """Returns the choice with its problems and refusals; nothing refused is applied.

    Raises: InvalidInput for a recipe that cannot be read.
    """
    choice = await _compose(launches, commands.viewer, request)
    if choice.refusals or purpose is not Purpose.LAUNCH:  # an accepted launch is logged when it starts
        await commands.audit_log.write(commands.viewer.author, _audit_command(choice, request, purpose))
    if purpose is Purpose.PREFLIGHT or (purpose is Purpose.LAUNCH and choice.role == Role.AGENT.value):  # needs prices
        return await _with_preflight(launches, choice)
    return choice


async def default_choice(launches: Launches, viewer: Viewer, source: LaunchSource) -> LaunchChoice:
    """Returns the choice of an unchanged recipe, for display: no provider is checked and nothing is logged."""
    return await _compose(launches, viewer, LaunchRequest(source=source, values={}, options_from=lambda usual: usual))


def field_text(value: object) -> str:
    """Returns the form text of a setting."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


async def _compose(launches: Launches, viewer: Viewer, request: LaunchRequest) -> LaunchChoice:
    source, role = request.source, viewer.effective_role(viewer.at).value
    base_form = await launches.catalogue.form(source.location)
    usual = LaunchOptions(has_fleet=base_form.has_fleet)
    defaults = LaunchOptions.of_launch(source.launch) if source.earlier_run else usual
    form, options, problem = base_form, defaults, ""
    values: Mapping[str, str] = {}
    kept: tuple[int, ...] = ()
    if source.earlier_run:
        kept = await asyncio.to_thread(kept_steps, RunFolder(Path(source.location).parent), base_form.trained)
    try:
        if request.text not in (None, base_form.text):
            form = await launches.catalogue.form(source.location, text=request.text, role=role)
        if not request.is_text_edited and not form.is_unreadable:
            values = request.values
            form = await _apply_settings(launches, source.location, form, base_form, values, role)
        options = with_join_address(request.options_from(defaults), form, launches.settings)
        _check_step(options.fork_step, kept)
    except AstraFlowError as error:
        problem = str(error)
    return LaunchChoice(
        source=source,
        form=_with_entered_values(form, base_form, values),
        options=options,
        kept_steps=kept,
        problem=problem,
        refusals=(*form.refusals, *([ONLY_ADMINS] if source.needs_admin and role != "admin" else [])),
        role=role,
        data_paths=launches.settings.data,
        key=request.key or secrets.token_hex(12),
        reason=request.reason,
    )


def _check_step(step: int | None, kept: Sequence[int]) -> None:
    if step is not None and step not in kept:
        known = ", ".join(map(str, kept)) or "none"
        raise InvalidInput(
            f"cannot fork at step {step}: the run has kept {known}; choose a kept step", code="launch.step_not_kept"
        )


def _audit_command(choice: LaunchChoice, request: LaunchRequest, purpose: Purpose) -> AuditedCommand:
    """Returns the audit entry of an attempt, with the requested settings also when it was refused."""
    after = {"set": " ".join(choice.overrides)} if choice.overrides else {}
    if choice.refusals:
        after["problem"] = choice.refusal_text
    result = "refused" if choice.refusals else "done"
    return AuditedCommand(
        action=purpose.value, target=choice.source.location, after=after, result=result, reason=request.reason
    )


async def _with_preflight(launches: Launches, choice: LaunchChoice) -> LaunchChoice:
    """Returns the choice with the result of the preflight check, if it has providers."""
    if not choice.needs_preflight:
        return choice
    try:
        preflight = await launches.catalogue.preflight(choice.source.location, choice.overrides, role=choice.role)
        return replace(choice, preflight=preflight)
    except AstraFlowError as error:
        return replace(choice, preflight_problem=str(error))


async def _apply_settings(
    launches: Launches, name_or_path: str, form: RecipeForm, base_form: RecipeForm, values: Mapping[str, str], role: str
) -> RecipeForm:
    """Returns a form with settings applied, including its problems. base_form: that of the unchanged recipe.

    Options of a newly chosen plugin are known only after the first pass. Raises: InvalidInput for an unknown setting.
    """
    field_keys = {field.key for field in form.fields}
    chosen = {key: text for key, text in values.items() if key in field_keys}
    if changed := overrides_from(chosen, form):
        overrides = _changed_overrides(form.overrides, changed, base_form)
        form = await launches.catalogue.form(name_or_path, overrides, role=role)
    if form.refusals:
        return form
    if others := overrides_from({key: text for key, text in values.items() if key not in field_keys}, form):
        overrides = _changed_overrides(form.overrides, others, base_form)
        form = await launches.catalogue.form(name_or_path, overrides, role=role)
    return form


def _changed_overrides(overrides: Sequence[str], changed: Sequence[str], base_form: RecipeForm) -> list[str]:
    """Returns the overrides after a change, without those that it sets back to the value of the recipe."""
    by_key = {override.partition("=")[0]: override for override in (*overrides, *changed)}
    texts = {field.key: field.text for field in base_form.fields}
    back = set(overrides_from({key: texts[key] for key in by_key.keys() & texts.keys()}, base_form, all_values=True))
    return [override for override in by_key.values() if override not in back]


def _with_entered_values(form: RecipeForm, unchanged_form: RecipeForm, values: Mapping[str, str]) -> RecipeForm:
    """Returns the form with the entered texts, also invalid ones.

    A form with problems may lack fields; those of the unchanged recipe are added.
    """
    present = {field.key for field in form.fields}
    shown = (*form.fields, *(field for field in unchanged_form.fields if form.problems and field.key not in present))
    fields = tuple(replace(field, value=values[field.key].strip()) if field.key in values else field for field in shown)
    return replace(form, fields=fields)


async def launch_source(launches: Launches, recipe: str, of: str) -> LaunchSource:
    """Returns the source of a launch: a known recipe, or the snapshot of an earlier run.

    Raises: InvalidInput, UnknownRun.
    """
    if bool(recipe) == bool(of):
        raise InvalidInput(
            "cannot launch a run: needs either `recipe` or `of`; give the name of a recipe or of an earlier run",
            code="launch.invalid_source",
        )
    if of:
        return await _earlier_run(launches, of)
    card = await launches.catalogue.card(recipe)
    return LaunchSource(name=card.name, location=card.name_or_path, recipe=card.name)


async def _earlier_run(launches: Launches, name: str) -> LaunchSource:
    """Returns a run of this machine as a source. Only an admin may launch it again if it was started in a terminal,
    where nothing limits its settings. Raises: UnknownRun, InvalidInput for a run that never started."""
    run = await launches.launcher.launch(name)
    if not run.folder.recipe_file.exists():
        raise InvalidInput(
            f"cannot launch a run like {name!r}: it has no recipe, because it never started; launch its recipe",
            code="launch.no_snapshot",
        )
    return LaunchSource(
        name=name,
        location=str(run.folder.recipe_file),
        earlier_run=name,
        needs_admin=run.launch.needs_admin,
        launch=run.launch,
    )
