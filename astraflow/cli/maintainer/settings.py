"""Configuration of the maintainer of a run on this machine, and its status in the terminal."""

from collections.abc import Sequence

from rich.text import Text

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.maintainer import Maintainer, MaintainerStatus, Proposal
from astraflow.contract.fleet.plans import Plan
from astraflow.contract.records import render
from astraflow.recipe.config import Recipe
from astraflow.runtime.config.toml import Values

SCRIPTED, MODEL = "scripted", "model"
"""Kinds of `run --maintainer`: a simulated model, or the recipe's `maintainer.model`."""


def maintainer_values(recipe: Recipe, *, kind: str) -> Values:
    """Returns the complete configuration. Raises: InvalidInput for an unknown kind or a recipe without a model."""
    if kind not in (SCRIPTED, MODEL):
        raise InvalidInput(
            f"cannot start the maintainer {kind[:40]!r}: it is not a known kind; use {SCRIPTED} or {MODEL}",
            code="maintainer.unknown_kind",
        )
    if kind == SCRIPTED:
        return recipe.maintainer if _is_scripted(recipe) else {**recipe.maintainer, "model": {"kind": "scripted"}}
    if "model" not in recipe.maintainer:
        raise InvalidInput(
            "cannot start the maintainer: the recipe names no model; add a table [maintainer.model] with kind, model "
            "and prices (docs/how-to/maintainer.md)",
            code="maintainer.no_model",
        )
    return recipe.maintainer


def maintainer_text(maintainer: Maintainer, proposals: Sequence[Proposal]) -> Text:
    """Returns the status of the maintainer and its proposals."""
    status = maintainer.status
    if status is None:
        lines = [f"mode {maintainer.mode.value}; no maintainer has reported since the fleet service started"]
    else:
        simulated = " (simulated, no model)" if status.is_simulated else ""
        lines = [
            f"mode {maintainer.mode.value}, {status.state.value}, {status.model}{simulated}",
            f"reported {maintainer.status_age_s or 0:.0f} s ago; last woken by: "
            f"{', '.join(status.last_signals) or 'no signal yet'}",
            *(f"  {budget.scope} {budget.unit}: {budget.used:g} of {budget.limit:g}" for budget in status.budgets),
            *(f"  problem: {render(problem)}" for problem in status.problems),
            f"  evaluations: {_evaluation_text(status)}",
            f"  this run: {_live_score_text(status)}",
        ]
    for proposal in proposals:
        plan = proposal.plan
        lines.append(
            f"proposal: plan {plan.id}, {change_text(plan)}, {plan.usd_per_hour_change:+.2f} $/h: {plan.request.reason}"
        )
    return Text(
        "\n".join([*lines, *(["decide with `astraflow maintainer approve PLAN`, or `reject`"] if proposals else [])])
    )


def change_text(plan: Plan) -> str:
    """Returns the change of a plan in a few words."""
    run = plan.request.run
    return run.sentence if run is not None else f"pool {plan.request.pool}: {plan.nodes} to {plan.target} nodes"


def _evaluation_text(status: MaintainerStatus) -> str:
    evaluation = status.evaluation
    if evaluation is None:
        return status.evaluation_problem or "no leaderboard"
    groups = ", ".join(f"{group.group} {group.passed} of {group.cases}" for group in evaluation.groups)
    age = "" if evaluation.is_current else "; outdated: evaluated with other instructions or tools"
    passed = f"{evaluation.passed} of {evaluation.cases} passed ({groups})"
    return f"{passed}, {evaluation.violations} violations, by {evaluation.source}{age}"


def _live_score_text(status: MaintainerStatus) -> str:
    live_score = status.live
    if live_score is None or live_score.ratio is None:
        return status.live_problem or "no score yet"
    return f"{live_score.ratio:.2f} of the cost of the rule alone, since the first of {live_score.changes} changes"


def _is_scripted(recipe: Recipe) -> bool:
    model = recipe.maintainer.get("model", {})
    return isinstance(model, dict) and model.get("kind") == "scripted"
