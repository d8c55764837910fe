"""A recipe as a form: what may be chosen, what it is now, and what is wrong with the choices. For whoever launches."""

import json
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from astraflow.cli.declared import check_declared, declared
from astraflow.cli.fleet import pools_elsewhere
from astraflow.cli.setting_titles import is_short, owner_of, title_of
from astraflow.contract.errors import InvalidInput
from astraflow.recipe import (
    Check,
    Recipe,
    find_recipe,
    load_recipe,
    packaged_recipes,
    plugin_specs,
    snapshot,
    summary_of,
)
from astraflow.runtime.runs import runs

FREE_BYTES = 10**9
"""A run directory should have this much room."""

FieldKind = Literal["whole", "number", "text", "yes_no"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One setting of a recipe."""

    key: str
    """As `--set` takes it."""
    title: str
    """What people call it."""
    owner: str
    """The policy, flow or pool that it belongs to; empty for the whole run."""
    kind: FieldKind
    value: int | float | str | bool | None
    description: str
    least: float | None
    most: float | None
    choices: tuple[str, ...]
    is_optional: bool
    """It may be left empty."""
    is_short: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FormProblem:
    """Something wrong with the choices."""

    key: str
    """The setting; empty when it is none in particular."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCheck:
    """One thing that was looked at before a launch."""

    what: str
    is_good: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeForm:
    """A recipe with some choices made."""

    name: str
    summary: str
    simulated: tuple[str, ...]
    """Kinds of its plug-ins that are stand-ins."""
    fields: tuple[FormField, ...]
    problems: tuple[FormProblem, ...]
    checks: tuple[FormCheck, ...]
    toml: str
    """The choices as a recipe file that extends this one."""
    usd_per_hour: float
    """What its nodes cost."""
    has_fleet: bool
    """It says where machines come from: it is meant to be launched with a fleet service."""
    pools_elsewhere: tuple[str, ...]
    """Pools whose machines are others than this one, and have to reach it."""


def recipe_cards(folders: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Name, place, sentence and stand-ins of every recipe that comes with AstraFlow or stands in one of the folders.

    Raises: InvalidInput for a folder that cannot be read.
    """
    packaged = [_card(name, name, "") for name in packaged_recipes()]
    return packaged + [_card(one.name, str(one.file), one.problem, folders) for one in declared(folders)]


def recipe_form(place: str, overrides: Sequence[str] = (), *, folders: Sequence[Path] = ()) -> RecipeForm:
    """The form of a recipe with choices as `--set` takes them; what is wrong with them is in it.

    folders: where recipes are declared; those that stand there may use nothing from elsewhere.
    Raises: InvalidInput for a recipe that cannot be read without them.
    """
    if any(Path(place).is_relative_to(folder.resolve()) for folder in folders):
        check_declared(Path(place), folders)
    plain = load_recipe(place, check=Check.NONE)
    chosen, problems = plain, []
    try:
        chosen = load_recipe(place, overrides, check=Check.NONE)
        load_recipe(place, overrides, check=Check.ALL if overrides else Check.LIGHT)
    except InvalidInput as problem:
        problems = [_problem(line) for line in str(problem).splitlines()]
    return RecipeForm(
        name=place,
        summary=plain.summary,
        simulated=_simulated(chosen),
        fields=tuple(_fields(chosen)),
        problems=tuple(problems),
        checks=tuple(_checks(problems)),
        toml=as_toml(place, overrides),
        usd_per_hour=chosen.nodes.count * chosen.nodes.price_per_hour,
        has_fleet=bool(chosen.fleet.get("providers") or chosen.fleet.get("pools")),
        pools_elsewhere=pools_elsewhere(chosen),
    )


def form_values(form: RecipeForm) -> dict[str, Any]:
    """The form as JSON takes it."""
    return asdict(form)


def as_toml(place: str, overrides: Sequence[str]) -> str:
    """A recipe file with these choices.

    >>> print(as_toml("reverse", ["stop.steps=50", "flows.train.reward={kind = 'exact_match'}", "summary=a look"]))
    extends = "reverse"
    stop.steps = 50
    flows.train.reward = {kind = 'exact_match'}
    summary = "a look"
    """
    lines = [f'extends = "{place}"']
    for override in overrides:
        key, _, text = override.partition("=")
        lines.append(f"{key.strip()} = {_as_written(text.strip())}")
    return "\n".join(lines)


def _as_written(text: str) -> str:
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _card(name: str, place: str, problem: str, folders: Sequence[Path] = ()) -> dict[str, Any]:
    card = {"name": name, "place": place, "summary": "", "simulated": [], "problem": problem}
    if problem:
        return card
    try:
        if folders:
            check_declared(Path(place), folders)
        card["summary"] = summary_of(find_recipe(place))
        recipe = load_recipe(place, check=Check.NONE)
    except InvalidInput as trouble:
        return card | {"problem": str(trouble)}
    return card | {"summary": recipe.summary, "simulated": list(_simulated(recipe))}


def _simulated(recipe: Recipe) -> tuple[str, ...]:
    kinds = (str(spec.get("kind")) for _, _, spec in plugin_specs(recipe))
    return tuple(sorted({kind for kind in kinds if kind == "scripted"}))


def _problem(line: str) -> FormProblem:
    """The setting that a line of an error is about, and what is wrong with it."""
    found = re.search(r"(?:^|: )(?P<key>[a-z_]+(?:\.[\w-]+)*): (?P<message>.+)$", line)
    return FormProblem(key=found["key"], message=found["message"]) if found else FormProblem(key="", message=line)


def _checks(problems: Sequence[FormProblem]) -> Iterator[FormCheck]:
    yield FormCheck(
        what="Recipe",
        is_good=not problems,
        message=f"{len(problems)} problems, beside their fields" if problems else "every setting is understood",
    )
    folder = next(path for path in (runs(), *runs().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    yield FormCheck(
        what="Disk", is_good=free >= FREE_BYTES, message=f"{free / 1e9:,.1f} GB free for the run in {runs()}"
    )


def _fields(recipe: Recipe) -> Iterator[FormField]:
    values = json.loads(snapshot(recipe))
    options = {path: _options_type(registry, spec) for path, registry, spec in plugin_specs(recipe)}
    for path, value in _leaves(values):
        info = _field_info(path, options)
        if path[-1] == "kind":
            choices = next((tuple(reg.kinds()) for where, reg, _ in plugin_specs(recipe) if where == path[:-1]), ())
        else:
            choices = _literals(info)
        found = _field(path, value, info, choices)
        if found is not None:
            yield found


def _field(path: tuple[str, ...], value: Any, info: FieldInfo | None, choices: tuple[str, ...]) -> FormField | None:
    kind = _kind(value, info)
    if kind is None:
        return None
    key = ".".join(path)
    least, most = _bounds(info)
    return FormField(
        key=key,
        title=title_of(key, info.title if info else None),
        owner=owner_of(key),
        kind=kind,
        value=value,
        description=" ".join((info.description or "").split()) if info else "",
        least=least,
        most=most,
        choices=choices,
        is_optional=value is None or (info is not None and type(None) in get_args(info.annotation)),
        is_short=is_short(key),
    )


def _leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _leaves(value, (*path, str(key)))
    elif not isinstance(values, list) and path not in (("name",), ("summary",)):
        yield path, values


def _kind(value: Any, info: FieldInfo | None) -> FieldKind | None:
    annotations = (info.annotation, *get_args(info.annotation)) if info else ()
    kinds: tuple[tuple[type, FieldKind], ...] = ((bool, "yes_no"), (float, "number"), (int, "whole"), (str, "text"))
    for type_, kind in kinds:
        if type_ in annotations:
            return kind
    return next((kind for type_, kind in kinds if isinstance(value, type_)), None)


def _options_type(registry: Any, spec: Mapping[str, Any]) -> type[BaseModel] | None:
    """What a plug-in can be told; None for one that cannot be imported here, or takes long to."""
    kind = str(spec.get("kind"))
    if registry.is_heavy(kind):
        return None
    try:
        return type(registry.check(spec))
    except InvalidInput:
        return None


def _field_info(path: tuple[str, ...], options: Mapping[tuple[str, ...], type[BaseModel] | None]) -> FieldInfo | None:
    """What is known of a setting: from the plug-in it belongs to, else from the recipe."""
    for depth in range(len(path) - 1, 0, -1):
        if path[:depth] in options:
            return _walk(options[path[:depth]], path[depth:])
    return _walk(Recipe, path)


def _walk(model: Any, path: Sequence[str]) -> FieldInfo | None:
    info: FieldInfo | None = None
    inside: Any = model
    for part in path:
        if isinstance(inside, type) and issubclass(inside, BaseModel):
            info = inside.model_fields.get(part)
            if info is None:
                return None
            inside = _bare(info.annotation)
        elif get_origin(inside) is dict:
            info, inside = None, _bare(get_args(inside)[-1])
        else:
            return None
    return info


def _bare(annotation: Any) -> Any:
    """Without an `| None`."""
    inner = [argument for argument in get_args(annotation) if argument is not type(None)]
    return inner[0] if type(None) in get_args(annotation) and len(inner) == 1 else annotation


def _literals(info: FieldInfo | None) -> tuple[str, ...]:
    bare = _bare(info.annotation) if info else None
    return tuple(str(choice) for choice in get_args(bare)) if get_origin(bare) is Literal else ()


def _bounds(info: FieldInfo | None) -> tuple[float | None, float | None]:
    least = most = None
    for rule in info.metadata if info else ():
        least = getattr(rule, "ge", getattr(rule, "gt", least))
        most = getattr(rule, "le", getattr(rule, "lt", most))
    return least, most


def shown(value: Any) -> str:
    """A value as a form shows it, and takes it back."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
