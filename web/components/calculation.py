"""Calculation of a target by the sizing rule, with its numbers filled in: for decisions and for events."""

from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.fleet.recommendations import RECOMMENDATION_INPUTS, PoolRecommendation
from web.components import formats

_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One line of the calculation, with its numbers."""

    name: str
    text: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculation:
    """A recommendation of the sizing rule, explained."""

    formulas: tuple[Formula, ...]
    """Lines with unmeasured figures are left out."""
    limits: str
    """Limits in effect, in words; empty without one."""
    inputs: tuple[tuple[str, str, str], ...]
    """Name, value and meaning."""
    input_hash: str


def calculation(recommendation: PoolRecommendation) -> Calculation:
    """Returns the explanation of a recommendation."""
    inputs = recommendation.inputs
    return Calculation(
        formulas=tuple(_formulas(recommendation)),
        limits=", ".join(limit.value.replace("_", " ") for limit in recommendation.limited_by),
        inputs=tuple(
            (name, number_text(inputs[name]), meaning)
            for name, meaning in RECOMMENDATION_INPUTS.items()
            if name in inputs
        ),
        input_hash=recommendation.input_hash,
    )


def _formulas(recommendation: PoolRecommendation) -> list[Formula]:
    get, _number = recommendation.inputs.get, number_text
    lines = []
    if has_all(
        recommendation.inputs, "groups_per_step", "compute_s", "produced_per_usable", "trim", "demand_groups_per_s"
    ):
        text = (
            f"{_number(get('groups_per_step'))} groups a step ÷ {_number(get('compute_s'))} s of compute {_TIMES} "
            f"{_number(get('produced_per_usable'))} produced per usable {_TIMES} {_number(get('trim'))} trim"
        )
        lines.append(Formula(name="Demand", text=text, result=f"{_number(get('demand_groups_per_s'))} groups/s"))
    if has_all(recommendation.inputs, "capacity_groups_per_s", "capacity_ordered_groups_per_s"):
        text = f"{_number(get('capacity_groups_per_s'))} groups/s of active nodes, plus pending nodes"
        result = f"{_number(get('capacity_ordered_groups_per_s'))} groups/s"
        lines.append(Formula(name="Requested capacity", text=text, result=result))
    if has_all(recommendation.inputs, "ratio", "band_low", "band_high", "noise"):
        text = (
            f"requested capacity ÷ demand, median of five ticks; band {_number(get('band_low'))} to "
            f"{_number(get('band_high'))}, noise {_number(get('noise'))}"
        )
        lines.append(Formula(name="Ratio", text=text, result=_number(get("ratio"))))
    if has_all(recommendation.inputs, "band_aim", "demand_groups_per_s", "node_groups_per_s") and get(
        "node_groups_per_s"
    ):
        aim, demand, rate = (
            recommendation.inputs[name] for name in ("band_aim", "demand_groups_per_s", "node_groups_per_s")
        )
        text = f"{_number(aim)} aim {_TIMES} {_number(demand)} groups/s ÷ {_number(rate)} groups/s per node, all pools"
        lines.append(Formula(name="Nodes needed", text=text, result=f"{aim * demand / rate:.1f}"))
    pending_text = f", {recommendation.pending} of them pending" if recommendation.pending else ""
    text = f"{formats.several(recommendation.present, 'node')} present{pending_text}; reasons: " + ", ".join(
        reason.value.replace("_", " ") for reason in recommendation.reasons
    )
    lines.append(Formula(name="Target", text=text, result=formats.several(recommendation.target, "node")))
    return lines


def has_all(inputs: Mapping[str, float], *names: str) -> bool:
    """Returns whether all these figures are measured."""
    return all(name in inputs for name in names)


def number_text(value: float | None) -> str:
    """Returns a figure with three significant digits."""
    return formats.MISSING if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
