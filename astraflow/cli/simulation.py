"""Scenarios and recorded runs played through: as a table, a plot, or JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from astraflow.archive.reports import recorded
from astraflow.contract.advice import WhatIfAnswer
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PoolId
from astraflow.recipe import Check, dataflow_config, load_recipe
from astraflow.runtime.plot import Curve, line_plot
from astraflow.runtime.toml import Layer, assignment, merged, read_toml
from astraflow.scaling.course import Course
from astraflow.scaling.options import Spec
from astraflow.scaling.replay import changed_spec, replayed
from astraflow.scaling.scenario import Scenario
from astraflow.scaling.scenarios import composed, find_scenario, scenario_names
from astraflow.scaling.simulator import simulate

RESOLUTIONS_S = (1, 60)


def list_scenarios() -> None:
    """Print the scenarios that come with AstraFlow."""
    table = Table("scenario", "what happens", box=None)
    for name in scenario_names():
        table.add_row(name, find_scenario(name).summary)
    Console().print(table)


def play_scenario(place: str, overrides: Sequence[str], *, seeds: range, plot: Path | None, as_json: bool) -> None:
    """Play a scenario with every policy, and print what came of it. Raises: InvalidInput."""
    scenario = read_scenario(place, overrides)
    chosen = scenario.sizer.policy
    courses = {
        "fixed": [simulate(scenario, seed=seed, is_fixed=True) for seed in seeds],
        "plain": [simulate(_with_policy(scenario, "plain"), seed=seed) for seed in seeds],
        "sizer": [simulate(_with_policy(scenario, "sizer"), seed=seed) for seed in seeds],
    }
    if plot is not None:
        _write(plot, scenario_plot(courses[chosen][0]))
    if as_json:
        figures = {policy: _means(runs) for policy, runs in courses.items()}
        shown = {
            "scenario": scenario.model_dump(mode="json"),
            "policies": figures,
            "course": asdict(courses[chosen][0]),
        }
        Console(soft_wrap=True).out(json.dumps(shown))
    else:
        Console(highlight=False).print(_table(courses))


def replay_run(place: Path, overrides: Sequence[str], *, resolution_s: int, as_json: bool, plot: Path | None) -> None:
    """Play the rule over a recorded run, and print what it would have advised. Raises: InvalidInput."""
    if resolution_s not in RESOLUTIONS_S:
        raise InvalidInput(f"no history is kept at a resolution of {resolution_s} s: ask for 1 or 60")
    spec = recorded_spec(place, overrides)
    answer = replayed(recorded(place / "dataflow" / "history.sqlite", resolution_s=resolution_s), spec)
    if plot is not None:
        _write(plot, replay_plot(answer))
    if as_json:
        Console(soft_wrap=True).out(json.dumps(asdict(answer), default=_plain))
        return
    console = Console(highlight=False)
    console.print(_replay_table(answer))
    for advice in answer.advice:
        console.print(f"{(advice.at - answer.began_at) / 60:8.1f} min  {advice.sentence}", soft_wrap=True)


def read_scenario(place: str, overrides: Sequence[str]) -> Scenario:
    """A scenario by name or from a TOML file, with `key=value` differences. Raises: InvalidInput."""
    changes = [assignment(text) for text in overrides]
    if place.endswith(".toml"):
        return composed(Layer(place, read_toml(Path(place))), *changes)
    return find_scenario(place, *changes)


def recorded_spec(place: Path, overrides: Sequence[str]) -> Spec:
    """Options and bounds of a recorded run, with differences as `sizer.KEY=VALUE` and `pools.NAME.KEY=VALUE`.

    Raises: InvalidInput.
    """
    changes: dict[str, Any] = {}
    for text in overrides:
        changes = merged(changes, assignment(text))
    unknown = sorted(changes.keys() - {"sizer", "pools"})
    if unknown:
        raise InvalidInput(f"a recorded run has no {unknown[0]!r} to set: sizer.KEY=VALUE or pools.NAME.KEY=VALUE")
    recipe = place / "recipe.json"
    if not recipe.is_file():
        raise InvalidInput(f"{place} is not the folder of a run: it has no {recipe.name}")
    config = dataflow_config(load_recipe(str(recipe), check=Check.NONE), run=place.name)
    spec = Spec(options=config.scaling, pools={PoolId(name): pool for name, pool in config.pools.items()})
    return changed_spec(spec, options=changes.get("sizer", {}), pools=changes.get("pools", {}))


def scenario_plot(course: Course) -> str:
    """Nodes over hours, as SVG."""
    moments = course.moments
    curves = (
        Curve(name="needed", points=tuple((one.at_s / 3600, one.needed) for one in moments)),
        Curve(name="target", points=tuple((one.at_s / 3600, one.target) for one in moments)),
        Curve(name="ready", points=tuple((one.at_s / 3600, one.ready) for one in moments)),
    )
    return line_plot(curves, x_label="hours", y_label="nodes")


def replay_plot(answer: WhatIfAnswer) -> str:
    """Targets over hours, as steps, as SVG."""
    curves = []
    for pool in sorted(answer.node_hours):
        moves = [advice for advice in answer.advice if advice.pool == pool]
        points: list[tuple[float, float]] = []
        for advice in moves:
            at = (advice.at - answer.began_at) / 3600
            points += [(at, points[-1][1])] if points else []
            points.append((at, float(advice.target)))
        if points:
            points.append(((answer.ended_at - answer.began_at) / 3600, points[-1][1]))
            curves.append(Curve(name=f"target of {pool}", points=tuple(points)))
    if not curves:
        raise InvalidInput("there is nothing to draw: no pool was advised on")
    return line_plot(curves, x_label="hours", y_label="nodes")


def _with_policy(scenario: Scenario, policy: str) -> Scenario:
    return scenario.model_copy(update={"sizer": scenario.sizer.model_copy(update={"policy": policy})})


def _means(courses: Sequence[Course]) -> dict[str, float]:
    figures = ("wait", "cost", "node_hours", "dollars", "actions", "flaps", "recovery_s", "peak_after", "hours")
    return {name: fmean(float(getattr(course, name)) for course in courses) for name in figures}


def _table(courses: Mapping[str, Sequence[Course]]) -> Table:
    table = Table("policy", box=None)
    for column in ("wait", "cost / ideal", "node hours", "dollars", "actions", "flaps", "recovery", "peak / needed"):
        table.add_column(column, justify="right")
    for policy, runs in courses.items():
        means = _means(runs)
        table.add_row(
            policy,
            f"{means['wait']:.1%}",
            f"{means['cost']:.2f}",
            f"{means['node_hours']:.1f}",
            f"{means['dollars']:.2f}",
            f"{means['actions']:.1f}",
            f"{means['flaps']:.1f}",
            f"{means['recovery_s'] / 60:.1f} min",
            f"{means['peak_after']:.2f}",
        )
    return table


def _replay_table(answer: WhatIfAnswer) -> Table:
    table = Table("", "recorded", "advised", box=None)
    for pool in sorted(answer.node_hours):
        was, would = answer.recorded_node_hours.get(pool, 0.0), answer.node_hours[pool]
        table.add_row(f"node hours of {pool}", f"{was:.2f}", f"{would:.2f}")
    table.add_row("dollars", f"{answer.recorded_dollars:.2f}", f"{answer.dollars:.2f}")
    table.add_row("wait that capacity explains", f"{answer.recorded_wait:.1%}", f"{answer.wait:.1%}")
    table.add_row("reports", str(answer.reports), "")
    return table


def _write(path: Path, svg: str) -> None:
    if path.suffix != ".svg":
        raise InvalidInput(f"plots are SVG: give a name that ends in .svg (found {path})")
    path.write_text(svg)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no place in an answer")
