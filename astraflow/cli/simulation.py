"""Simulated scenarios and replayed runs as a table, a plot or JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from astraflow.archive.reports import read_reports
from astraflow.cli.output import Table, show
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.recommendations import WhatIfAnswer
from astraflow.contract.ids import PoolId
from astraflow.contract.records import render
from astraflow.recipe.config import dataflow_config
from astraflow.recipe.loading import Check, load_recipe
from astraflow.runtime.config.toml import ConfigLayer, merge_tables, parse_override, read_toml
from astraflow.runtime.plot import Curve, line_plot
from astraflow.scaling.options import Spec
from astraflow.scaling.simulation.result import SimulationResult
from astraflow.scaling.simulation.scenario import Scenario
from astraflow.scaling.simulation.scenarios import compose, find_scenario, scenario_names
from astraflow.scaling.simulation.simulator import simulate
from astraflow.scaling.what_if import changed_spec, replay

RESOLUTIONS_S = (1, 60)


def list_scenarios(*, as_json: bool) -> None:
    """Prints the packaged scenarios."""
    show({name: find_scenario(name).summary for name in scenario_names()}, _scenario_table, as_json=as_json)


def play_scenario(location: str, overrides: Sequence[str], *, seeds: range, plot: Path | None, as_json: bool) -> None:
    """Simulates a scenario with every scaling policy and prints the results. Raises: InvalidInput."""
    scenario = read_scenario(location, overrides)
    rule = scenario.sizer.rule
    courses = {
        "fixed": [simulate(scenario, seed=seed, is_fixed=True) for seed in seeds],
        "plain": [simulate(_with_policy(scenario, "baseline"), seed=seed) for seed in seeds],
        "sizer": [simulate(_with_policy(scenario, "sizer"), seed=seed) for seed in seeds],
    }
    if plot is not None:
        _write(plot, scenario_plot(courses[rule][0]))
    means = {policy: _means(runs) for policy, runs in courses.items()}
    content = {"scenario": scenario, "policies": means, "course": courses[rule][0]}
    show(content, lambda _: _table(means), as_json=as_json)


def replay_run(
    run_directory: Path, overrides: Sequence[str], *, resolution_s: int, as_json: bool, plot: Path | None
) -> None:
    """Replays a recorded run and prints the recommendations of the rule. Raises: InvalidInput."""
    if resolution_s not in RESOLUTIONS_S:
        raise InvalidInput(
            f"cannot replay at a resolution of {resolution_s} s: the history has no such points; use 1 or 60",
            code="simulate.unknown_resolution",
        )
    spec = recorded_spec(run_directory, overrides)
    answer = replay(read_reports(run_directory / "dataflow" / "history.sqlite", resolution_s=resolution_s), spec)
    if plot is not None:
        _write(plot, replay_plot(answer))
    show(answer, _replay_content, as_json=as_json)


def read_scenario(location: str, overrides: Sequence[str]) -> Scenario:
    """Reads a scenario by name or from a TOML file, with `key=value` overrides. Raises: InvalidInput."""
    changes = [parse_override(text) for text in overrides]
    if location.endswith(".toml"):
        return compose(ConfigLayer(location, read_toml(Path(location))), *changes)
    return find_scenario(location, *changes)


def recorded_spec(run_directory: Path, overrides: Sequence[str]) -> Spec:
    """Returns options and bounds of a recorded run, with overrides `sizer.KEY=VALUE` and `pools.NAME.KEY=VALUE`.

    Raises: InvalidInput.
    """
    changes: dict[str, Any] = {}
    for text in overrides:
        changes = merge_tables(changes, parse_override(text))
    unknown = sorted(changes.keys() - {"sizer", "pools"})
    if unknown:
        raise InvalidInput(
            f"cannot set {unknown[0]!r}: a replay has no such setting; use sizer.KEY=VALUE or pools.NAME.KEY=VALUE",
            code="simulate.unknown_setting",
        )
    recipe = run_directory / "recipe.json"
    if not recipe.is_file():
        raise InvalidInput(
            f"cannot replay {str(run_directory)!r}: it has no {recipe.name}; name a run directory",
            code="simulate.no_run_directory",
        )
    config = dataflow_config(load_recipe(str(recipe), check=Check.NONE), run=run_directory.name)
    spec = Spec(options=config.scaling, pools={PoolId(name): pool for name, pool in config.pools.items()})
    return changed_spec(spec, options=changes.get("sizer", {}), pools=changes.get("pools", {}))


def scenario_plot(course: SimulationResult) -> str:
    """Returns a plot of nodes over hours as SVG."""
    ticks = course.ticks
    curves = (
        Curve(name="needed", points=tuple((tick.at_s / 3600, tick.needed) for tick in ticks)),
        Curve(name="target", points=tuple((tick.at_s / 3600, tick.target) for tick in ticks)),
        Curve(name="ready", points=tuple((tick.at_s / 3600, tick.ready) for tick in ticks)),
    )
    return line_plot(curves, x_label="hours", y_label="nodes")


def replay_plot(answer: WhatIfAnswer) -> str:
    """Returns a plot of targets over hours, as steps, as SVG."""
    curves = []
    for pool in sorted(answer.node_hours):
        recommendations = [recommendation for recommendation in answer.recommendations if recommendation.pool == pool]
        points: list[tuple[float, float]] = []
        for recommendation in recommendations:
            at = (recommendation.at - answer.began_at) / 3600
            points += [(at, points[-1][1])] if points else []
            points.append((at, float(recommendation.target)))
        if points:
            points.append(((answer.ended_at - answer.began_at) / 3600, points[-1][1]))
            curves.append(Curve(name=f"target of {pool}", points=tuple(points)))
    if not curves:
        raise InvalidInput(
            "cannot plot the targets: the replay made no recommendation; omit --plot, or change the options",
            code="simulate.nothing_to_plot",
        )
    return line_plot(curves, x_label="hours", y_label="nodes")


def _with_policy(scenario: Scenario, policy: str) -> Scenario:
    return scenario.model_copy(update={"sizer": scenario.sizer.model_copy(update={"rule": policy})})


def _means(courses: Sequence[SimulationResult]) -> dict[str, float]:
    figures = (
        "wait",
        "cost",
        "node_hours",
        "dollars",
        "actions",
        "flaps",
        "recovery_s",
        "peak_ratio_after_event",
        "hours",
    )
    return {name: fmean(float(getattr(course, name)) for course in courses) for name in figures}


def _scenario_table(summaries: Mapping[str, str]) -> Table:
    table = Table("scenario", "description")
    for name, summary in summaries.items():
        table.add(name, summary)
    return table


def _table(figures: Mapping[str, Mapping[str, float]]) -> Table:
    columns = ("wait", "cost / ideal", "node hours", "dollars", "actions", "flaps", "recovery", "peak / needed")
    table = Table("policy", *columns, right=columns, wrapped=())
    for policy, means in figures.items():
        table.add(
            policy,
            f"{means['wait']:.1%}",
            f"{means['cost']:.2f}",
            f"{means['node_hours']:.1f}",
            f"{means['dollars']:.2f}",
            f"{means['actions']:.1f}",
            f"{means['flaps']:.1f}",
            f"{means['recovery_s'] / 60:.1f} min",
            f"{means['peak_ratio_after_event']:.2f}",
        )
    return table


def _replay_content(answer: WhatIfAnswer) -> RenderableType:
    table = Table("", "recorded", "recommended", wrapped=())
    for pool in sorted(answer.node_hours):
        recorded_hours, recommended_hours = answer.recorded_node_hours.get(pool, 0.0), answer.node_hours[pool]
        table.add(f"node hours of {pool}", f"{recorded_hours:.2f}", f"{recommended_hours:.2f}")
    table.add("dollars", f"{answer.recorded_dollars:.2f}", f"{answer.dollars:.2f}")
    table.add("wait due to capacity", f"{answer.recorded_wait:.1%}", f"{answer.wait:.1%}")
    table.add("reports", str(answer.reports), "")
    changes = (
        Text(f"{(change.at - answer.began_at) / 60:8.1f} min  {change.pool}: {render(change.change)}")
        for change in answer.recommendations
    )
    return Group(table, *changes)


def _write(path: Path, svg: str) -> None:
    if path.suffix != ".svg":
        raise InvalidInput(
            f"cannot write the plot {str(path)!r}: only SVG is supported; use a name that ends in .svg",
            code="simulate.not_svg",
        )
    path.write_text(svg)
