"""Dry run of a recipe: GPUs, memory, batches, disk and downloads, computed without a network, a GPU or the model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.cli.recipes.data import data_problems, reward_fields
from astraflow.cli.recipes.downloads import Need, needs
from astraflow.cli.recipes.placement import (
    GpuUse,
    PolicyRows,
    engine_context,
    gpu_uses,
    needs_gpu,
    policy_rows,
    problems,
    setup_of,
    trainer_use,
)
from astraflow.contract.errors import InvalidInput
from astraflow.models.shapes import ModelShape, model_shape
from astraflow.raas.engines.memory import MAX_RANK, SERVERS, ServerMemory, server_memory
from astraflow.raas.engines.server.families import server_support
from astraflow.recipe.config import PolicyConfig, Recipe, adapter_rank, engine_of, trainer_config
from astraflow.trainer.memory import BFLOAT16, FLOAT32, TrainerMemory
from astraflow.workflows import workflows

_SIZES = ("limit", "size", "generated")
"""Options of data sets with their number of prompts."""
_ROW_BYTES = 12
"""Bytes of a token in a stored trajectory: its id, its logprob, and masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """Figures of one policy."""

    policy: str
    model: str
    parameters: int | None
    """None for an unknown shape, as is all that follows from it."""
    trainer: TrainerMemory | None
    """Per GPU; per process on a CPU."""
    server: ServerMemory | None
    """Per GPU; None for an engine in the node's process."""
    batching: str
    """How the trainer computes trajectories, as far as the model's shape tells; empty if it does not choose."""
    served: str
    """What is known of the engine's program and the model's class; empty for an engine in the node's process."""
    adapters: str
    """How the engine serves adapters; empty for a policy without them."""
    context_tokens: int
    """Longest sequence that the engine serves; 0 if unknown."""
    batch_rows: int
    """Trajectories in a batch, if each episode has one of this policy; the fewest where tokens size batches."""
    micro_batch_tokens: int
    longest_row: int
    passes_per_update: int
    """Passes of a rank in an optimizer step, if all rows are as long as possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """Figures of one flow."""

    flow: str
    prompts: int
    """Prompts that the run trains on; those of dropped groups come on top, and of rows shorter than the longest where
    tokens size batches."""
    episodes: int
    dataset_size: int | None
    """Prompts of the data set; None where only the data tell."""
    reward_fields: tuple[tuple[str, ...], ...]
    """Fields of a prompt that the reward needs, each with those that stand for it."""

    @property
    def epochs(self) -> float | None:
        """Times that each prompt is trained on."""
        return self.prompts / self.dataset_size if self.dataset_size else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipePlan:
    """Result of a dry run."""

    name: str
    summary: str
    steps: int
    gpu_bytes: int
    needs_gpu: bool
    uses: tuple[GpuUse, ...]
    policies: tuple[PolicyPlan, ...]
    flows: tuple[FlowPlan, ...]
    disk: Mapping[str, int]
    """Bytes by part."""
    needs: tuple[Need, ...]
    problems: tuple[InvalidInput, ...]
    warnings: tuple[str, ...]
    """Settings with which every part works and the run may still not learn, as sentences."""


def plan_recipe(recipe: Recipe, *, gpu_bytes: int) -> RecipePlan:
    """Plans a checked recipe for a host whose GPUs have this memory. Raises: InvalidInput for an unreadable model."""
    shapes = {name: model_shape(policy.model) for name, policy in recipe.policies.items()}
    rows = {name: policy_rows(recipe, name, shapes[name]) for name in recipe.policies}
    uses = tuple(gpu_uses(recipe, shapes, rows, gpu_bytes=gpu_bytes))
    return RecipePlan(
        name=recipe.name,
        summary=recipe.summary,
        steps=recipe.stop.steps,
        gpu_bytes=gpu_bytes,
        needs_gpu=needs_gpu(recipe),
        uses=uses,
        policies=tuple(
            _policy_plan(recipe, name, shapes[name], rows[name], gpu_bytes=gpu_bytes) for name in recipe.policies
        ),
        flows=tuple(_flow_plan(recipe, name, rows) for name in recipe.flows),
        disk=_disk(recipe, shapes, rows),
        needs=tuple(needs(recipe)),
        problems=(*problems(recipe, shapes, uses, rows=rows, gpu_bytes=gpu_bytes), *data_problems(recipe)),
        warnings=tuple(_uncorrected(recipe)),
    )


def _uncorrected(recipe: Recipe) -> Iterator[str]:
    """Yields a warning for each policy whose rollouts are of rounded weights and whose loss corrects nothing."""
    for name, policy in recipe.policies.items():
        weights = str(engine_of(recipe, name).get("weights", "exact"))
        if weights != "exact" and policy.is_trained and not policy.algorithm.corrects_samples:
            yield (
                f"the engine of {name!r} samples with weights = {weights!r}, which the trainer does not have: its "
                f"gradients are biased; set centering = 8 in policies.{name}.algorithm.loss, or corrections = "
                '[{ kind = "tis" }], and watch mismatch_k3'
            )


def _policies(workflow: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(map(str, workflows.build(workflow).policies))


def _policy_plan(
    recipe: Recipe, name: str, shape: ModelShape | None, bounds: PolicyRows, *, gpu_bytes: int
) -> PolicyPlan:
    policy, engine = recipe.policies[name], engine_of(recipe, name)
    setup = setup_of(policy, is_gpu=needs_gpu(recipe))
    groups = [flow.group_size for flow in recipe.flows.values() if name in _policies(flow.workflow)]
    rows = _batch_rows(policy, max(groups, default=1), bounds.longest)
    updates = setup.data_ranks * policy.algorithm.minibatches
    longest = bounds.longest
    pack = max(setup.micro_batch_tokens, longest, 1)
    has_server = shape is not None and engine.get("kind") in SERVERS and needs_gpu(recipe)
    return PolicyPlan(
        policy=name,
        model=str(policy.model.get("path") or policy.model.get("name") or policy.model.get("kind")),
        parameters=shape.parameters if shape else None,
        trainer=trainer_use(policy, shape, bounds),
        server=server_memory(shape, engine, gpu_bytes=gpu_bytes) if shape and has_server else None,
        batching=_batching(policy.backend, shape),
        served=_server_support(engine, shape),
        adapters=_adapter_service(recipe, name),
        context_tokens=engine_context(engine, shape),
        batch_rows=rows,
        micro_batch_tokens=setup.micro_batch_tokens,
        longest_row=longest,
        passes_per_update=-(-rows * longest // (updates * pack)),
    )


def _batching(backend: Mapping[str, Any], shape: ModelShape | None) -> str:
    if backend.get("kind") not in ("local", "fsdp") or shape is None:
        return ""
    demanded = backend.get("batching", "auto")
    if demanded != "auto":
        return f"{demanded}, which the recipe demands"
    if shape.counted_parameters:
        return "the fastest that the check at the start finds exact; astraflow doctor --model FOLDER makes this check"
    if shape.state is None:
        return "packed"
    return "tree if the check at the start finds it exact, else rows: not packed, since layers have recurrent states"


def _server_support(engine: Mapping[str, Any], shape: ModelShape | None) -> str:
    support = server_support(str(engine.get("kind")), shape.architecture) if shape and shape.architecture else None
    if support is None or shape is None:
        return ""
    verb = "lists" if support.is_listed else "does not list"
    return f"{engine['kind']} {support.release} {verb} {shape.architecture}" + (
        f"; {support.note}" if support.note else ""
    )


def _adapter_service(recipe: Recipe, name: str) -> str:
    """Returns how the engine of a policy serves the adapters of its trainer."""
    engine, rank = engine_of(recipe, name), adapter_rank(recipe.policies[name])
    if not rank:
        return ""
    if engine.get("lora"):
        return f"unmerged, rank {rank}; added to the weights if the server does not start with adapters"
    if engine.get("kind") in SERVERS:
        cause = "lora = false" if rank <= MAX_RANK else f"rank {rank}, of at most {MAX_RANK}"
        return f"added to the weights ({cause}), which rounds young adapters away in 16 bits"
    return "unmerged in 16 bits, added to the weights in float32" if engine.get("kind") == "local_torch" else ""


def _batch_rows(policy: PolicyConfig, group_size: int, longest: int) -> int:
    """Returns the trajectories of a batch; as few as can be where tokens size it."""
    return policy.batch_groups * group_size or -(-policy.batch_tokens // max(longest, 1))


def _flow_plan(recipe: Recipe, name: str, bounds: Mapping[str, PolicyRows]) -> FlowPlan:
    flow = recipe.flows[name]
    policies = _policies(flow.workflow)
    rows = max(_batch_rows(recipe.policies[policy], flow.group_size, bounds[policy].longest) for policy in policies)
    prompts = recipe.stop.steps * -(-rows // flow.group_size)
    size = next((int(flow.dataset[key]) for key in _SIZES if flow.dataset.get(key)), None)
    return FlowPlan(
        flow=name,
        prompts=prompts,
        episodes=prompts * flow.group_size,
        dataset_size=size,
        reward_fields=reward_fields(flow),
    )


def _disk(recipe: Recipe, shapes: Mapping[str, ModelShape | None], rows: Mapping[str, PolicyRows]) -> dict[str, int]:
    """Returns upper bounds; the initial models, checkpoints with the one being written, full snapshots of the weight
    store, and buffered trajectories of full length."""
    sizes = dict.fromkeys(("models", "checkpoints", "weight store", "buffered trajectories"), 0)
    snapshots = 2 + recipe.weights.retained_versions // recipe.weights.full_snapshot_every
    for name, policy in recipe.policies.items():
        shape, setup = shapes[name], setup_of(policy, is_gpu=needs_gpu(recipe))
        if shape is None:
            continue
        trained = shape.adapter_parameters(setup.lora_rank, setup.lora_targets) if setup.lora_rank else shape.parameters
        checkpoints = trainer_config(recipe, name).keep_checkpoints + 1
        sizes["models"] += BFLOAT16 * shape.parameters
        state = int((FLOAT32 + 2 * setup.moment_bytes) * trained)
        sizes["checkpoints"] += checkpoints * state * (2 if setup.has_critic else 1)
        base = shape.parameters if setup.lora_rank else 0
        sizes["weight store"] += BFLOAT16 * (snapshots * trained + base)
        size = max((flow.group_size for flow in recipe.flows.values()), default=1)
        batch_rows = _batch_rows(policy, size, rows[name].longest)
        sizes["buffered trajectories"] += (policy.max_staleness + 1) * batch_rows * rows[name].longest * _ROW_BYTES
    return {part: size for part, size in sizes.items() if size}
