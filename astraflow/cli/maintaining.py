"""What the command line shows of a run's maintainer, and what a run on this machine tells it."""

from collections.abc import Sequence

import typer

from astraflow.contract.errors import InvalidInput
from astraflow.contract.maintenance import Maintainer, MaintainerStatus, Proposal
from astraflow.recipe import Recipe
from astraflow.runtime.toml import Values

SCRIPTED, MODEL = "scripted", "model"
"""Who decides in `run --maintainer`: a stand-in, or the recipe's `maintainer.model`."""


def maintainer_values(recipe: Recipe, *, who: str) -> Values:
    """The configuration, complete. Raises: InvalidInput for a model that the recipe does not name."""
    if who not in (SCRIPTED, MODEL):
        raise InvalidInput(f"--maintainer is {SCRIPTED} or {MODEL}, not {who[:40]!r}")
    if who == SCRIPTED:
        return recipe.maintainer if _is_scripted(recipe) else {**recipe.maintainer, "model": {"kind": "scripted"}}
    if "model" not in recipe.maintainer:
        raise InvalidInput(
            "--maintainer model needs to know which: give the recipe a [maintainer.model] with kind, model and prices "
            "(docs/maintainer.md)"
        )
    return recipe.maintainer


def show_maintainer(maintainer: Maintainer, proposals: Sequence[Proposal]) -> None:
    """A few lines for a person."""
    status = maintainer.status
    if status is None:
        typer.echo(f"mode {maintainer.mode.value}; no maintainer has said anything since the fleet service began")
    else:
        simulated = " (a stand-in, no model)" if status.is_simulated else ""
        typer.echo(f"mode {maintainer.mode.value}, {status.state.value}, {status.model}{simulated}")
        woken_by = ", ".join(status.last_signals) or "nothing yet"
        typer.echo(f"heard {maintainer.status_age_s or 0:.0f} s ago; woken last by: {woken_by}")
        for budget in status.budgets:
            typer.echo(f"  {budget.scope} {budget.unit}: {budget.used:g} of {budget.limit:g}")
        for trouble in status.troubles:
            typer.echo(f"  trouble: {trouble}")
        typer.echo(f"  evaluations: {_evaluated(status)}")
        typer.echo(f"  this run: {_live(status)}")
    for proposal in proposals:
        plan = proposal.plan
        typer.echo(
            f"waits: plan {plan.id}, pool {plan.request.pool}: {plan.nodes} to {plan.target} nodes, "
            f"{plan.usd_per_hour_change:+.2f} $/h: {plan.request.reason}"
        )
    if proposals:
        typer.echo("decide with `astraflow maintainer approve PLAN`, or `reject`")


def _evaluated(status: MaintainerStatus) -> str:
    found = status.evaluation
    if found is None:
        return status.evaluation_problem or "no leaderboard is looked at"
    groups = ", ".join(f"{group.group} {group.passed} of {group.cases}" for group in found.groups)
    age = "" if found.is_current else "; played with other instructions or tools than today's"
    return f"{found.passed} of {found.cases} passed ({groups}), {found.violations} violations, by {found.source}{age}"


def _live(status: MaintainerStatus) -> str:
    found = status.live
    if found is None or found.ratio is None:
        return status.live_problem or "no score yet"
    return f"{found.ratio:.2f} of what the rule alone would have cost, since its first of {found.changes} changes"


def _is_scripted(recipe: Recipe) -> bool:
    model = recipe.maintainer.get("model", {})
    return isinstance(model, dict) and model.get("kind") == "scripted"
