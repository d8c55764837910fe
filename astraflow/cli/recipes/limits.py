"""Combinations of a recipe's settings that cannot work, found without starting anything; each with its remedy."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil

from astraflow.cli.recipes.downloads import dataset_needs
from astraflow.cli.recipes.gpu_placement import GpuUse, needs_gpu, setup_of, trainer_use
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.dataflow.config import FlowConfig
from astraflow.datasets import datasets
from astraflow.datasets.base import QUESTION
from astraflow.models.shapes import ModelShape, known_model
from astraflow.raas.engines.memory import SERVERS, gpus_per_server, server_gpus, server_memory
from astraflow.recipe.config import Recipe, engine_of
from astraflow.workflows import workflows
from astraflow.workflows.base import BoundedWorkflow

GIB = 2**30
_TEMPLATE_TOKENS = 256
"""Tokens that a chat template and a system message usually add to a question."""
_SAMPLED = 64
"""First prompts of a data set whose questions are measured. Count."""
_GPU_OPTIONS = {"cpu_offload": "trainer.offload_without_gpu", "float8": "trainer.float8_without_gpu"}
"""Options of trainers that need a GPU, and the codes with which a trainer refuses them."""


def problems(
    recipe: Recipe,
    shapes: Mapping[str, ModelShape | None],
    uses: Sequence[GpuUse],
    *,
    rows: Mapping[str, int],
    gpu_bytes: int,
) -> Iterator[InvalidInput]:
    """Yields what cannot work. rows: longest row of each policy. Tokens."""
    for name in recipe.policies:
        yield from _batch_problems(recipe, name)
        yield from _backend_problems(recipe, name, shapes[name])
        shape = shapes[name]
        if shape is not None:
            yield from _division_problems(recipe, name, shape)
            yield from _engine_problems(recipe, name, shape, gpu_bytes)
    yield from _context_problems(recipe, shapes)
    yield from _memory_problems(uses, gpu_bytes)
    if not needs_gpu(recipe):
        yield from _host_problems(recipe, shapes, rows)


def longest_row(flow: FlowConfig, context: int) -> int:
    """Returns the longest trajectory of a flow, by what its workflow states and by the questions of its first prompts,
    where the data are here. Tokens, of which a text has at most as many as characters. context: bound of the engine."""
    workflow = workflows.build(flow.workflow)
    bounds = workflow.bounds if isinstance(workflow, BoundedWorkflow) else EpisodeBounds()
    limits = [context] if bounds.tokens is None else [context, bounds.tokens]
    if bounds.context is not None and bounds.written is not None and (characters := _question_characters(flow.dataset)):
        limits.append(_TEMPLATE_TOKENS + characters + bounds.written)
    return min(filter(None, limits), default=0)


def _question_characters(spec: Mapping[str, Any]) -> int:
    """Returns the characters of the longest of the first questions; 0 where the data are elsewhere."""
    if any(not need.is_here for need in dataset_needs(spec)):
        return 0
    try:
        dataset = datasets.build(spec, 0)
        questions = [dataset.prompt(index).fields.get(QUESTION) for index in range(min(_SAMPLED, dataset.size))]
    except AstraFlowError:  # the recipe's own checks report it
        return 0
    return max((len(question) for question in questions if isinstance(question, str)), default=0)


def engine_context(engine: Mapping[str, Any], shape: ModelShape | None) -> int:
    """Returns the longest sequence that an engine serves. Tokens; 0 if unknown."""
    return int(engine.get("context_tokens", 0)) or (shape.context if shape else 0)


def _batch_problems(recipe: Recipe, name: str) -> Iterator[InvalidInput]:
    policy = recipe.policies[name]
    rows = policy.batch_groups * min(flow.group_size for flow in recipe.flows.values())
    if policy.algorithm.minibatches > policy.batch_groups:
        yield InvalidInput(
            f"cannot divide the batches of {name!r}: {policy.algorithm.minibatches} minibatches of whole groups, "
            f"{policy.batch_groups} groups; lower policies.{name}.algorithm.minibatches, or raise batch_groups",
            code="recipe.too_many_minibatches",
        )
    ranks = setup_of(policy, is_gpu=True).data_ranks
    if ranks * policy.algorithm.minibatches > rows:
        yield InvalidInput(
            f"cannot give every rank of {name!r} a row: {ranks} ranks, {policy.algorithm.minibatches} minibatches, "
            f"{rows} rows of a batch; use fewer ranks or larger batches",
            code="recipe.too_many_ranks",
        )


def _backend_problems(recipe: Recipe, name: str, shape: ModelShape | None) -> Iterator[InvalidInput]:
    """Yields what the trainer would refuse at its start, with the codes that it gives."""
    policy, where = recipe.policies[name], f"policies.{name}.backend"
    for option, code in _GPU_OPTIONS.items():
        if policy.backend.get(option) and policy.backend.get("device") == "cpu":
            yield InvalidInput(
                f"cannot train {name!r} on a CPU with {option}, which only GPUs have; set device = 'cuda' in {where}, "
                f"or remove {option}",
                code=code,
            )
    lora = policy.backend.get("lora")
    if lora is None or shape is None:
        return
    if policy.model.get("kind") == "tiny" or known_model(policy.model):
        layers = shape.adapter_widths
        if unknown := sorted(set(lora.get("target_modules") or ()) - layers.keys()):
            yield InvalidInput(
                f"cannot add adapters to {', '.join(map(repr, unknown))} of {name!r}: its blocks have the linear "
                f"layers {', '.join(layers)}; choose {where}.lora.target_modules among them",
                code="trainer.unknown_adapter_targets",
            )


def _division_problems(recipe: Recipe, name: str, shape: ModelShape) -> Iterator[InvalidInput]:
    policy = recipe.policies[name]
    sequence_ranks = setup_of(policy, is_gpu=True).sequence_ranks
    if shape.heads % sequence_ranks:
        yield InvalidInput(
            f"cannot divide {shape.heads} heads of {name!r} over {sequence_ranks} ranks; set policies.{name}.backend."
            "sequence_ranks to a divisor",
            code="recipe.heads_not_divisible",
        )
    if policy.backend.get("kind") == "titan" and (shape.experts or not shape.has_head_norms):
        yield InvalidInput(
            f"cannot train {name!r} with the backend titan: its model is no dense Qwen3; use the backend fsdp",
            code="recipe.titan_unsupported",
        )
    width = int(engine_of(recipe, name).get("tensor_parallel", 1))
    if shape.heads % width:
        yield InvalidInput(
            f"cannot split {shape.heads} heads of {name!r} over {width} GPUs; set tensor_parallel of its engine to a "
            "divisor",
            code="recipe.heads_not_divisible",
        )


def _engine_problems(recipe: Recipe, name: str, shape: ModelShape, gpu_bytes: int) -> Iterator[InvalidInput]:
    engine = engine_of(recipe, name)
    if engine.get("kind") not in SERVERS:
        return
    groups, size = server_gpus(engine), gpus_per_server(engine)
    if len(groups) != int(engine.get("servers", 1)) or any(gpus and len(gpus) != size for gpus in groups):
        yield InvalidInput(
            f"cannot place the servers for {name!r}: {engine.get('servers', 1)} servers of {size} GPUs, devices "
            f"{list(engine.get('devices', ()))}; name {size} GPUs for each server",
            code="recipe.devices_and_servers",
        )
    memory, context = server_memory(shape, engine, gpu_bytes=gpu_bytes), engine_context(engine, shape)
    if memory.cached_tokens < context:
        yield InvalidInput(
            f"cannot serve {name!r}: after {memory.weights / GIB:.1f} GiB of weights the cache of a server holds "
            f"{memory.cached_tokens:,} tokens, less than one sequence of {context:,}; raise memory_share or "
            "tensor_parallel, or lower context_tokens of the engine",
            code="recipe.cache_too_small",
        )


def _context_problems(recipe: Recipe, shapes: Mapping[str, ModelShape | None]) -> Iterator[InvalidInput]:
    for table, flows in (("flows", recipe.flows), ("evaluations", recipe.evaluations)):
        for flow, config in flows.items():
            for policy in recipe.policies:
                context = engine_context(engine_of(recipe, policy), shapes[policy])
                limits = [(key, int(value)) for key, value in config.workflow.items() if _is_limit(key)]
                for key, tokens in limits:
                    if context and (tokens > context or (tokens == context and key != "max_context")):
                        yield InvalidInput(
                            f"cannot generate for {table}.{flow}: {key} is {tokens:,}, the engine of {policy!r} serves "
                            f"sequences of {context:,} tokens, prompt included; lower {key} or raise context_tokens",
                            code="recipe.context_too_short",
                        )


def _is_limit(key: str) -> bool:
    return key == "max_context" or key.endswith("max_new_tokens")


def _memory_problems(uses: Sequence[GpuUse], gpu_bytes: int) -> Iterator[InvalidInput]:
    by_gpu: dict[int, list[GpuUse]] = defaultdict(list)
    for use in uses:
        by_gpu[use.gpu].append(use)
    reported = set()
    for gpu, parts in sorted(by_gpu.items()):
        needed = sum(use.size_bytes or 0 for use in parts)
        key = tuple(use.part.partition(", ")[0] for use in parts)
        if needed <= gpu_bytes or key in reported:
            continue
        reported.add(key)
        listed = ", ".join(f"{use.part} ({(use.size_bytes or 0) / GIB:.1f} GiB)" for use in parts)
        yield InvalidInput(
            f"cannot place the run: GPU {gpu} has {gpu_bytes / GIB:.0f} GiB, and {listed} need {needed / GIB:.1f} GiB; "
            + "; or ".join(dict.fromkeys(use.remedy for use in parts)),
            code="recipe.gpu_too_small",
        )


def _host_problems(
    recipe: Recipe, shapes: Mapping[str, ModelShape | None], rows: Mapping[str, int]
) -> Iterator[InvalidInput]:
    """Yields trainers on a CPU that this machine has no memory for."""
    memory_bytes = psutil.virtual_memory().total
    for name, policy in recipe.policies.items():
        use = trainer_use(policy, shapes[name], longest_row=rows[name])
        if use is not None and use.peak > memory_bytes:
            yield InvalidInput(
                f"cannot train {name!r} on the CPU of this machine: its trainer needs {use.peak / GIB:.0f} GiB, the "
                f"machine has {memory_bytes / GIB:.0f} GiB; set fewer micro_batch_tokens or lora in policies.{name}, "
                "shorter answers, or a smaller model",
                code="recipe.memory_too_small",
            )
