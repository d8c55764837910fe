"""A recipe as a form: what may be chosen, what it is now, and what is wrong with the choices. For whoever launches."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from astraflow.cli.declared import check_declared, declared
from astraflow.cli.fleet_form import FleetForm, PoolOffer, fleet_form
from astraflow.cli.override_limits import Classes, Limits, refusals
from astraflow.cli.recipe_checks import LOOPBACK, FormCheck, checks
from astraflow.cli.setting_facts import FieldKind, bounds, field_info, kind_of, literals, options_type, walk
from astraflow.cli.setting_titles import is_short, owner_of, title_of
from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.recipe import (
    Check,
    Recipe,
    find_recipe,
    load_recipe,
    packaged_recipes,
    plugin_lists,
    plugin_specs,
    snapshot,
    summary_of,
)
from astraflow.runtime.overrides import SetBy
from astraflow.runtime.plugins import Registry
from astraflow.runtime.toml import toml_text


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
    set_by: str
    """Least role that may override it from the page: `agent`, `operator` or `admin`; `place` for a path below a data
    place; `recipe` for none."""
    entries: tuple[str, ...] = ()
    """Of a list of plug-ins: each in TOML, with its options; `value` has their kinds, separated by commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormProblem:
    """Something wrong with the choices."""

    key: str
    """The setting; empty when it is none in particular."""
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
    refusals: tuple[FormProblem, ...]
    """Settings that may not be overridden so. With any, no override is applied."""
    checks: tuple[FormCheck, ...]
    toml: str
    """The choices as a recipe file that extends this one."""
    usd_per_hour: float
    """What its nodes cost."""
    has_fleet: bool
    """It says where machines come from: it is meant to be launched with a fleet service."""
    pools: tuple[PoolOffer, ...]
    """Its pools, if it has a fleet."""
    usd_per_hour_max: float | None
    """The fleet's budget; None for unbounded."""
    usd_per_day_max: float | None


def recipe_cards(folders: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Name, place, sentence and stand-ins of every recipe that comes with AstraFlow or stands in one of the folders.

    Raises: InvalidInput for a folder that cannot be read.
    """
    packaged = [_card(name, name, "") for name in packaged_recipes()]
    return packaged + [_card(one.name, str(one.file), one.problem, folders) for one in declared(folders)]


def recipe_form(
    place: str,
    overrides: Sequence[str] = (),
    *,
    folders: Sequence[Path] = (),
    host: str = LOOPBACK,
    limits: Limits | None = None,
) -> RecipeForm:
    """The form of a recipe with choices as `--set` takes them; what is wrong with them is in it.

    folders: where recipes are declared; those that stand there may use nothing from elsewhere. host: where a run with
    machines elsewhere would listen. limits: of whoever chose, when that is not the local user.
    Raises: InvalidInput for a recipe that cannot be read without them.
    """
    _check_place(place, folders)
    plain = load_recipe(place, check=Check.NONE)
    refused = _refused(plain, overrides, limits)
    chosen, problems, overrides = plain, list(refused), () if refused else overrides
    try:
        chosen = load_recipe(place, overrides, check=Check.NONE)
        load_recipe(place, overrides, check=Check.ALL if overrides else Check.LIGHT)
    except InvalidInput as problem:
        problems += [_problem(line) for line in str(problem).splitlines()]
    has_fleet = bool(chosen.fleet.get("providers") or chosen.fleet.get("pools"))
    fleet = fleet_form(chosen, asks=False) if has_fleet else FleetForm()
    problems += [_problem(line) for line in fleet.problems]
    return RecipeForm(
        name=place,
        summary=plain.summary,
        simulated=_simulated(chosen),
        fields=tuple(_fields(chosen, fleet)),
        problems=tuple(problems),
        refusals=refused,
        checks=tuple(checks(chosen, fleet, problems=len(problems), host=host)),
        toml=as_toml(place, overrides),
        usd_per_hour=chosen.nodes.count * chosen.nodes.price_per_hour,
        has_fleet=has_fleet,
        pools=fleet.pools,
        usd_per_hour_max=fleet.usd_per_hour_max,
        usd_per_day_max=fleet.usd_per_day_max,
    )


def rehearsed(
    place: str, overrides: Sequence[str] = (), *, folders: Sequence[Path] = (), limits: Limits | None = None
) -> dict[str, Any]:
    """Pools with prices, and what the providers of the recipe's fleet say; takes seconds. As JSON takes it.

    Raises: InvalidInput for what cannot be asked, NotPermitted beyond `limits`, DeadlineExceeded.
    """
    _check_place(place, folders)
    if refused := _refused(load_recipe(place, check=Check.NONE), overrides, limits):
        raise NotPermitted("; ".join(f"cannot override {one.key}: {one.message}" for one in refused))
    fleet = fleet_form(load_recipe(place, overrides, check=Check.NONE), asks=True)
    if fleet.problems:
        raise InvalidInput("\n".join(fleet.problems))
    return {name: [asdict(one) for one in getattr(fleet, name)] for name in ("pools", "checks")}


def _refused(plain: Recipe, overrides: Sequence[str], limits: Limits | None) -> tuple[FormProblem, ...]:
    """Of overrides beyond the limits."""
    found = refusals(plain, overrides, limits) if limits is not None and overrides else []
    return tuple(FormProblem(key=one.key, message=one.message) for one in found)


def _check_place(place: str, folders: Sequence[Path]) -> None:
    """A recipe of the folders uses nothing from elsewhere. Raises: InvalidInput."""
    if any(Path(place).is_relative_to(folder.resolve()) for folder in folders):
        check_declared(Path(place), folders)


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


def _fields(recipe: Recipe, fleet: FleetForm) -> Iterator[FormField]:
    values = json.loads(snapshot(recipe))
    if fleet.values is not None:
        values["fleet"] = fleet.values
    classes = Classes(recipe, values, imports_heavy=False)
    options = {path: options_type(registry, spec) for path, registry, spec in plugin_specs(recipe)}
    for path, _, spec in plugin_specs(recipe):
        if not path[-1].isdigit():  # one of a list is told what its entry says
            _fill(reduce(getitem, path, values), options[path], spec)
    for path, value in _leaves(values):
        info = field_info(path, options) if path[0] != "fleet" else fleet.info(path[1:])
        if path[-1] == "kind":
            choices = next((tuple(reg.kinds()) for where, reg, _ in plugin_specs(recipe) if where == path[:-1]), ())
        else:
            choices = literals(info)
        found = _field(path, value, info, choices, set_by=classes.of(path))
        if found is not None:
            yield found
    yield from (_list_field(*one) for one in plugin_lists(recipe))


def _fill(table: dict[str, Any], options: type[BaseModel] | None, spec: Mapping[str, Any]) -> None:
    """What a plug-in can be told besides what it is: its defaults, and nothing for what has none."""
    for name, info in options.model_fields.items() if options is not None else ():
        if name not in spec:
            default = info.get_default(call_default_factory=True)
            table[name] = default if isinstance(default, bool | int | float | str) else None


def _list_field(path: tuple[str, ...], registry: Registry[Any], specs: Sequence[Mapping[str, Any]]) -> FormField:
    """The kinds of a list of plug-ins, in their order."""
    info = walk(Recipe, path)
    return FormField(
        key=".".join(path),
        title=title_of(".".join(path)),
        owner=owner_of(".".join(path)),
        kind="plugins",
        value=", ".join(str(spec.get("kind")) for spec in specs),
        description=" ".join((info.description or "").split()) if info else "",
        least=None,
        most=None,
        choices=tuple(registry.kinds()),
        is_optional=True,
        is_short=is_short(".".join(path)),
        set_by=SetBy.AGENT.value,
        entries=tuple(toml_text(dict(spec)) for spec in specs),
    )


def _field(
    path: tuple[str, ...], value: Any, info: FieldInfo | None, choices: tuple[str, ...], *, set_by: SetBy
) -> FormField | None:
    kind = kind_of(value, info) or ("text" if choices else None)
    if kind is None:
        return None
    key = ".".join(path)
    least, most = bounds(info)
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
        set_by=set_by.value,
    )


def _leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _leaves(value, (*path, str(key)))
    elif not isinstance(values, list) and path not in (("name",), ("summary",)):
        yield path, values


def shown(value: Any) -> str:
    """A value as a form shows it, and takes it back."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
