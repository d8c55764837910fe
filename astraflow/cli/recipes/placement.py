"""Placement of a recipe's trainers and engines on the GPUs of one host, and settings that cannot work together.

Nothing is started; each problem has its remedy.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from astraflow.cli.recipes.data import question_length, readable_prompts
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.nodes import TeacherChoice
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.dataflow.config import EvaluationConfig, FlowConfig
from astraflow.models import models
from astraflow.models.shapes import ModelShape, known_model
from astraflow.raas.engines import engines
from astraflow.raas.engines.memory import SERVERS, gpus_per_server, server_gpus, server_memory
from astraflow.raas.engines.server.options import ServerOptions
from astraflow.recipe.config import PolicyConfig, Recipe, engine_of
from astraflow.trainer.memory import TrainerMemory, TrainingSetup, trainer_memory
from astraflow.workflows import workflows
from astraflow.workflows.base import BoundedWorkflow

RESERVED_BYTES = 2 << 30
"""Contexts of CUDA and NCCL, and fragments, of a trainer's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Part of a run on one GPU."""

    gpu: int
    part: str
    """Such as `trainer of 'solver', rank 0`."""
    size_bytes: int | None
    """None when the shape of the model is unknown."""
    remedy: str
    """How to make it smaller, or to move it."""


def needs_gpu(recipe: Recipe) -> bool:
    """Returns whether the recipe names GPUs, or serves a model other than the tiny one by a server.

    Other trainers and engines use a GPU if there is one, and otherwise the CPU.
    """
    backends = (policy.backend for policy in recipe.policies.values())
    return any(backend.get("gpus") or str(backend.get("device", "")).startswith("cuda") for backend in backends) or any(
        engine_of(recipe, name).get("kind") in SERVERS and policy.model.get("kind") == "huggingface"
        for name, policy in recipe.policies.items()
    )


def setup_of(policy: PolicyConfig, *, is_gpu: bool) -> TrainingSetup:
    """Returns what decides on the memory of a policy's trainer."""
    return TrainingSetup.of(policy.backend, policy.algorithm.model_dump(), is_gpu=is_gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRows:
    """Trajectories of a policy."""

    longest: int
    """Tokens of the longest one."""
    batch: int
    """Trajectories in a batch; 0: their workflows state no bound."""


def trainer_use(policy: PolicyConfig, shape: ModelShape | None, rows: PolicyRows) -> TrainerMemory | None:
    """Returns the memory of each GPU of a trainer; None for an unknown shape."""
    if shape is None:
        return None
    updated = -(-rows.batch // policy.algorithm.minibatches)
    return trainer_memory(shape, setup_of(policy, is_gpu=True), longest_row=rows.longest, rows=updated)


def gpu_uses(
    recipe: Recipe, shapes: Mapping[str, ModelShape | None], rows: Mapping[str, PolicyRows], *, gpu_bytes: int
) -> Iterator[GpuUse]:
    """Yields the parts of a run on each GPU of this host, trainers first; nothing for a recipe that needs none.

    rows: trajectories of each policy.
    """
    if not needs_gpu(recipe):
        return
    for name, policy in recipe.policies.items():
        memory = trainer_use(policy, shapes[name], rows[name])
        size = None if memory is None else memory.peak + RESERVED_BYTES
        for rank, gpu in enumerate(trainer_gpus(policy.backend)):
            yield GpuUse(
                gpu=gpu,
                part=f"trainer of {name!r}, rank {rank}",
                size_bytes=size,
                remedy=_trainer_remedy(name, policy.backend),
            )
    for name in recipe.policies:
        yield from _server_uses(recipe, name, shapes[name], gpu_bytes)


def trainer_gpus(backend: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the GPUs of a trainer's ranks on this host."""
    device = str(backend.get("device", "auto"))
    if device == "cpu" or backend.get("kind") not in ("local", "fsdp", "titan"):
        return ()
    if backend.get("kind") == "local":
        return (int(device.partition(":")[2] or 0),)
    return tuple(backend.get("gpus") or range(int(backend.get("ranks", 2))))


def _trainer_remedy(name: str, backend: Mapping[str, Any]) -> str:
    where = f"policies.{name}.backend"
    remedies = [] if backend.get("recompute") == "full" or backend.get("kind") == "titan" else ["recompute = 'full'"]
    if backend.get("kind") in ("fsdp", "titan"):
        remedies += [] if backend.get("gradient_sync") == "each_pack" else ["gradient_sync = 'each_pack'"]
        remedies += ["more ranks"]
    remedies += [] if backend.get("moments_dtype") == "bfloat16" else ["moments_dtype = 'bfloat16'"]
    return f"set {', '.join(remedies)} or fewer micro_batch_tokens in {where}, or name other GPUs there"


def _server_uses(recipe: Recipe, name: str, shape: ModelShape | None, gpu_bytes: int) -> Iterator[GpuUse]:
    engine = engine_of(recipe, name)
    if engine.get("kind") not in SERVERS:
        return
    table = f"nodes.engines.{name}" if name in recipe.nodes.engines else "nodes.engine"
    memory = None if shape is None else server_memory(shape, engine, gpu_bytes=gpu_bytes)
    for node in range(recipe.nodes.count):
        suffix = f", node {node + 1}" if recipe.nodes.count > 1 else ""
        for number, gpus in enumerate(server_gpus(engine)):
            for gpu in gpus:
                yield GpuUse(
                    gpu=gpu,
                    part=f"{engine['kind']} for {name!r}, server {number}{suffix}",
                    size_bytes=None if memory is None else memory.total,
                    remedy=f"name other devices in {table}, or lower its memory_share",
                )


GIB = 2**30
_TEMPLATE_TOKENS = 256
"""Tokens that a chat template and a system message usually add to a question."""
_FILTERS = ("temperature", "top_p", "top_k", "min_p")
"""Options of workflows that leave tokens out."""
_GPU_OPTIONS = {"cpu_offload": "trainer.offload_without_gpu", "float8": "trainer.float8_without_gpu"}
"""Options of trainers that need a GPU, and the codes with which a trainer refuses them."""


def problems(
    recipe: Recipe,
    shapes: Mapping[str, ModelShape | None],
    uses: Sequence[GpuUse],
    *,
    rows: Mapping[str, PolicyRows],
    gpu_bytes: int,
) -> Iterator[InvalidInput]:
    """Yields what cannot work. rows: trajectories of each policy."""
    for name in recipe.policies:
        yield from _batch_problems(recipe, name)
        yield from _backend_problems(recipe, name, shapes[name])
        yield from _speculation_problems(recipe, name)
        shape = shapes[name]
        if shape is not None:
            yield from _division_problems(recipe, name, shape)
            yield from _engine_problems(recipe, name, shape, gpu_bytes)
    yield from _teacher_problems(recipe)
    yield from _context_problems(recipe, shapes)
    yield from _memory_problems(uses, gpu_bytes)
    if not needs_gpu(recipe):
        yield from _host_problems(recipe, shapes, rows)


def policy_rows(recipe: Recipe, name: str, shape: ModelShape | None) -> PolicyRows:
    """Returns the trajectories of a policy, by what the workflows of its flows state."""
    context = engine_context(engine_of(recipe, name), shape)
    flows = [(flow, workflows.build(flow.workflow)) for flow in recipe.flows.values()]
    bounded = [
        (flow, workflow.bounds if isinstance(workflow, BoundedWorkflow) else EpisodeBounds())
        for flow, workflow in flows
        if name in map(str, workflow.policies)
    ]
    policy = recipe.policies[name]
    length = _text_length(policy.model)
    episodes = [flow.group_size * (bounds.trajectories or 0) for flow, bounds in bounded]
    return PolicyRows(
        longest=max((_longest_row(flow, bounds, context, length) for flow, bounds in bounded), default=context),
        batch=policy.batch_groups * max(episodes) if episodes and all(episodes) else 0,
    )


def _text_length(model: Mapping[str, Any]) -> Callable[[str], int]:
    """Returns how the length of a text is measured: by the model's tokenizer where it is here, else in characters, of
    which a token has at least one."""
    try:
        tokenizer = models.build(model).tokenizer()
    except (InvalidInput, ImportError):  # the model, or transformers, is not on this machine
        return len
    return lambda text: len(tokenizer.encode(text))


def _longest_row(flow: FlowConfig, bounds: EpisodeBounds, context: int, length: Callable[[str], int]) -> int:
    """Returns the longest trajectory of a flow, by what its workflow states and by a sample of its questions, where the
    data are here. Tokens. context: bound of the engine."""
    limits = [context] if bounds.tokens is None else [context, bounds.tokens]
    if bounds.context is not None and bounds.written is not None and (size := question_length(flow.dataset, length)):
        limits.append(_TEMPLATE_TOKENS + size + bounds.written)
    return min(filter(None, limits), default=0)


def engine_context(engine: Mapping[str, Any], shape: ModelShape | None) -> int:
    """Returns the longest sequence that an engine serves. Tokens; 0 if unknown."""
    return int(engine.get("context_tokens", 0)) or (shape.context if shape else 0)


def _teacher_problems(recipe: Recipe) -> Iterator[InvalidInput]:
    """Yields a problem for each flow of which one of the first prompts names no teacher of a trained policy."""
    for flow in recipe.flows.values():
        for name in map(str, workflows.build(flow.workflow).policies):
            policy = recipe.policies[name]
            if not policy.is_trained or not policy.algorithm.teacher_field:
                continue
            choice = TeacherChoice(
                policy=PolicyId(name), field=policy.algorithm.teacher_field, teachers=tuple(policy.algorithm.teachers)
            )
            try:
                for prompt in readable_prompts(flow.dataset):
                    choice.teacher_of(prompt.id, prompt.fields)
            except InvalidInput as problem:
                yield problem


def _batch_problems(recipe: Recipe, name: str) -> Iterator[InvalidInput]:
    policy = recipe.policies[name]
    if policy.batch_tokens:
        return  # minibatches and ranks without a group or a row have nothing to compute
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
    if policy.backend.get("kind") == "titan" and (shape.experts or shape.state or not shape.has_head_norms):
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


def _speculation_problems(recipe: Recipe, name: str) -> Iterator[InvalidInput]:
    """Yields what a server would refuse at its start or at a request."""
    engine = dict(engine_of(recipe, name))
    kind = engine.pop("kind", None)
    if kind not in SERVERS or engine.get("speculation", "off") == "off":
        return
    options = engines.options(kind).parse(engine, where=f"engine {kind}")
    assert isinstance(options, ServerOptions)  # noqa: S101 (the options of both servers)
    device = "cuda" if needs_gpu(recipe) else "cpu"
    checks: list[Callable[[], None]] = [partial(options.check_device, device)]
    flows: list[FlowConfig | EvaluationConfig] = [*recipe.flows.values(), *recipe.evaluations.values()]
    for flow in flows:
        sampling = Sampling(max_new_tokens=1, **{key: flow.workflow[key] for key in _FILTERS if key in flow.workflow})
        if isinstance(flow, FlowConfig) and recipe.policies[name].is_trained:
            sampling = sampling.recording_support()
        checks.append(partial(options.check_verified, sampling))
    for check in checks:
        try:
            check()
        except InvalidInput as problem:
            yield problem


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
    recipe: Recipe, shapes: Mapping[str, ModelShape | None], rows: Mapping[str, PolicyRows]
) -> Iterator[InvalidInput]:
    """Yields trainers on a CPU that this machine has no memory for."""
    memory_bytes = psutil.virtual_memory().total
    for name, policy in recipe.policies.items():
        use = trainer_use(policy, shapes[name], rows[name])
        if use is not None and use.peak > memory_bytes:
            yield InvalidInput(
                f"cannot train {name!r} on the CPU of this machine: its trainer needs {use.peak / GIB:.0f} GiB, the "
                f"machine has {memory_bytes / GIB:.0f} GiB; set fewer micro_batch_tokens or lora in policies.{name}, "
                "shorter answers, or a smaller model",
                code="recipe.memory_too_small",
            )
