"""`astraflow check recipe`: prints the dry run of a recipe as tables or JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astraflow.cli.options import Json, check_recipe, complete_recipe

if TYPE_CHECKING:
    from rich.console import RenderableType

    from astraflow.cli.output import Table
    from astraflow.cli.recipes.plan import PolicyPlan, RecipePlan

GIB = 2**30


def recipe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE", help="Name of a packaged recipe, or a file.", autocompletion=complete_recipe
        ),
    ],
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Setting of the recipe; may be repeated.")
    ] = [],  # noqa: B006 (typer copies it)
    gpu_gib: Annotated[float, typer.Option(min=1, help="Memory of each GPU of the host, in GiB.")] = 79.0,
    as_json: Json = False,
) -> None:
    """Check a recipe without a network or GPU: settings, data on this machine, placement on GPUs, memory, batches, disk
    and downloads.

    Exits with code 1 if a setting is impossible. Figures of memory and disk are estimates: upper bounds for full-length
    answers. Without torch installed, options of trainer and loss are checked where they run.
    """
    from importlib.util import find_spec

    from astraflow.cli.output import show
    from astraflow.cli.recipes.plan import plan_recipe
    from astraflow.recipe.loading import Check, load_recipe

    loaded = load_recipe(check_recipe(name), overrides, check=Check.ALL if find_spec("torch") else Check.LIGHT)
    plan = plan_recipe(loaded, gpu_bytes=int(gpu_gib * GIB))
    show(plan_values(plan), lambda _: _plan_text(plan), as_json=as_json)
    if plan.problems:
        raise typer.Exit(1)


def plan_values(plan: "RecipePlan") -> dict[str, Any]:
    values = {key: value for key, value in _fields(plan) if key != "problems"}
    for policy, planned in zip(values["policies"], plan.policies, strict=True):
        if planned.trainer is not None:
            policy["trainer"]["peak"] = planned.trainer.peak
    return {**values, "problems": [{"code": problem.code, "message": str(problem)} for problem in plan.problems]}


def _fields(plan: "RecipePlan") -> Iterator[tuple[str, Any]]:
    for key in plan.__dataclass_fields__:
        value = getattr(plan, key)
        if key in ("uses", "policies", "flows", "needs"):
            value = [asdict(part) for part in value]
        yield key, value


def _plan_text(plan: "RecipePlan") -> "RenderableType":
    """Returns the tables of a plan, and its problems."""
    from rich.console import Group
    from rich.text import Text

    no_gpu = Text("no GPU is needed; trainers and engines use the first if any")
    problems = [Text(f"problem: {problem} [{problem.code}]", style="red") for problem in plan.problems]
    warnings = [Text(f"warning: {warning}", style="yellow") for warning in plan.warnings]
    return Group(
        Text(f"{plan.name}: {plan.summary}"),
        Text(""),
        _gpu_table(plan) if plan.needs_gpu else no_gpu,
        Text(""),
        _figures(plan),
        Text(""),
        _needs_table(plan),
        Text(""),
        *(problems or [Text("no problem found; nothing was run")]),
        *warnings,
    )


def _gpu_table(plan: "RecipePlan") -> "Table":
    from astraflow.cli.output import Table

    table = Table("GPU", "holds", "GiB", "of", right=("GPU", "GiB", "of"), wrapped=("holds",))
    by_gpu: dict[int, list[str]] = {}
    for use in plan.uses:
        by_gpu.setdefault(use.gpu, []).append(use.part)
    for gpu in sorted(by_gpu):
        sizes = [use.size_bytes for use in plan.uses if use.gpu == gpu]
        known_sizes = [size for size in sizes if size is not None]
        total = f"{sum(known_sizes) / GIB:.1f}" if len(known_sizes) == len(sizes) else "unknown"
        table.add(str(gpu), "; ".join(by_gpu[gpu]), total, f"{plan.gpu_bytes / GIB:.0f}")
    return table


def _figures(plan: "RecipePlan") -> "Table":
    from astraflow.cli.output import Table

    table = Table("estimate", "value")
    for policy in plan.policies:
        for name, text in _policy_rows(policy):
            table.add(f"{policy.policy}: {name}", text)
    for flow in plan.flows:
        epochs = "" if flow.epochs is None else f", {flow.epochs:,.1f} times each of {flow.dataset_size:,}"
        text = f"{flow.prompts:,} prompts{epochs}; {flow.episodes:,} episodes; dropped groups come on top"
        table.add(f"{flow.flow}: {plan.steps:,} steps", text)
        if flow.reward_fields:
            names = ", ".join(" or ".join(alternatives) for alternatives in flow.reward_fields)
            table.add(f"{flow.flow}: reward needs", f"the fields {names} of a prompt")
    disk = ", ".join(f"{part} {size / 1e9:,.1f}" for part, size in plan.disk.items())
    table.add("disk, at most, GB", f"{sum(plan.disk.values()) / 1e9:,.1f} ({disk})" if disk else "unknown model")
    return table


def _policy_rows(policy: "PolicyPlan") -> Iterator[tuple[str, str]]:
    size = "unknown shape" if policy.parameters is None else f"{policy.parameters / 1e9:.3g} billion parameters"
    yield "model", f"{policy.model}, {size}"
    if policy.trainer is not None:
        held = ", ".join(f"{part} {size / GIB:.1f}" for part, size in policy.trainer.held.items()) or "rest on the host"
        yield (
            "trainer, GiB",
            f"{policy.trainer.peak / GIB:.1f} ({held}; activations {policy.trainer.activations / GIB:.1f}, "
            f"gathered weights and logits {policy.trainer.transient / GIB:.1f}; "
            f"at the start {policy.trainer.start / GIB:.1f})",
        )
    if policy.batching:
        yield "batching", policy.batching
    if policy.served:
        yield "engine", policy.served
    if policy.server is not None:
        sequences = policy.server.cached_tokens / max(1, policy.context_tokens)
        yield (
            "server, GiB",
            f"weights {policy.server.weights / GIB:.1f}, cache {policy.server.cache / GIB:.1f}: "
            f"{policy.server.cached_tokens:,} tokens, {sequences:.1f} sequences of {policy.context_tokens:,}",
        )
    if policy.adapters:
        yield "adapters are served", policy.adapters
    yield (
        "batch",
        f"{policy.batch_rows:,} trajectories of at most {policy.longest_row:,} tokens; {policy.micro_batch_tokens:,} "
        f"tokens in a pass, at most {policy.passes_per_update:,} passes of a rank in an update",
    )


def _needs_table(plan: "RecipePlan") -> "Table":
    from astraflow.cli.output import Table

    table = Table("needed", "state", "command", wrapped=())
    for need in plan.needs:
        state = "unknown" if need.is_here is None else "here" if need.is_here else "missing"
        table.add(need.name, state, need.command)
    return table
