"""Choice of a launch: a recipe, or the settings of an earlier run, with overrides. Nothing is started.

The form, its preview, the preflight check, the API, clones and launches all use `choose_launch`. It refuses overrides
that the user's role may not make before a provider or the environment is used, and logs previews and refusals in the
audit log.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.launching import FormProblem, RecipeForm
from web.accounts.viewer import Viewer
from web.launcher.catalogue import overrides_from
from web.launcher.options import LaunchOptions, with_join_address
from web.launches.views import LaunchChoice, LaunchSource
from web.requests.commands import Commands
from web.requests.run_lookup import Launches
from web.security.audit_log import AuditedCommand

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
    if purpose is Purpose.PREFLIGHT:
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
    defaults = await _default_options(launches, base_form, source.earlier_run)
    form, options, problem = base_form, defaults, ""
    overrides: list[str] = []
    try:
        form, overrides = await _apply_settings(launches, source.location, base_form, request.values, role)
        options = with_join_address(request.options_from(defaults), form, launches.settings)
    except AstraFlowError as error:
        problem = str(error)
    return LaunchChoice(
        source=source,
        form=_with_entered_values(form, base_form, request.values),
        overrides=tuple(overrides),
        options=options,
        problem=problem,
        refusals=(*form.refusals, *([ONLY_ADMINS] if source.needs_admin and role != "admin" else [])),
        role=role,
        data_paths=launches.settings.data,
        key=request.key or secrets.token_hex(12),
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


async def _default_options(launches: Launches, form: RecipeForm, earlier_run: str) -> LaunchOptions:
    """Returns the start options of the earlier run, or else of the recipe."""
    return (
        (await launches.launcher.launch(earlier_run)).options
        if earlier_run
        else LaunchOptions(has_fleet=form.has_fleet)
    )


async def _apply_settings(
    launches: Launches, name_or_path: str, unchanged_form: RecipeForm, values: Mapping[str, str], role: str
) -> tuple[RecipeForm, list[str]]:
    """Returns a recipe's form with settings applied, including its problems, and the `--set` arguments.

    Options of a newly chosen plugin are known only after the first pass. Raises: InvalidInput for an unknown setting.
    """
    field_keys = {field.key for field in unchanged_form.fields}
    overrides = overrides_from({key: text for key, text in values.items() if key in field_keys}, unchanged_form)
    form = await launches.catalogue.form(name_or_path, overrides, role=role) if overrides else unchanged_form
    if form.refusals:
        return form, overrides
    if others := overrides_from({key: text for key, text in values.items() if key not in field_keys}, form):
        overrides += others
        form = await launches.catalogue.form(name_or_path, overrides, role=role)
    return form, overrides


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
        launched = await launches.launcher.launch(of)
        if not launched.folder.recipe_file.exists():
            raise InvalidInput(
                f"cannot launch a run like {of!r}: it has no recipe, because it never started; launch its recipe",
                code="launch.no_snapshot",
            )
        return LaunchSource(
            name=of, location=str(launched.folder.recipe_file), earlier_run=of, needs_admin=launched.needs_admin
        )
    card = await launches.catalogue.card(recipe)
    return LaunchSource(name=card.name, location=card.name_or_path, recipe=card.name)
