"""Gradient of a whole training step: of the ranks of an engine, and of the plainest loop. Run as a rank."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch, Row, Rows
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.models.causal import named_weights
from astraflow.models.precision import WeightsDtype, weights_dtype_of
from astraflow.models.stored import StoredModel
from astraflow.runtime import logs
from astraflow.trainer.engines.adapters import LoraOptions, trained_weights
from astraflow.trainer.engines.base import Batching, ModelRole, UpdateResult
from astraflow.trainer.engines.fsdp import FsdpEngine, Sharding
from astraflow.trainer.engines.mesh import RankMesh
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.ranks.channel import Message
from astraflow.trainer.ranks.process import run_rank
from astraflow.trainer.step.runner import StepRunner
from astraflow.trainer.step.shares import Share
from tests.trainer.plain_critic import ALGORITHM, PlainCritic
from tests.trainer.plain_experts import expert_column, force_experts
from tests.trainer.plain_losses import PLAIN_LOSSES
from tests.trainer.step_gradients import adapters_of, peft_adapters

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Division of a step over ranks."""

    replicas: int = 1
    sequence_ranks: int = 1
    is_tied: bool = True
    syncs_each_pack: bool = False
    has_reference: bool = False
    """A penalty of the divergence from the initial weights, whose gradient is 0 at these weights."""
    recompute: str = "none"
    published: WeightsDtype = "float32"
    has_critic: bool = False
    experts: int = 0
    replays: bool = False
    """Replays the experts of `expert_column`."""
    is_bfloat16: bool = False
    """Computes in bfloat16, in which a gradient has two digits."""
    loss: str = "ppo"
    """Name in `PLAIN_LOSSES`."""
    lora_rank: int = 0
    """Rank of adapters, which then are all that is trained, and whose base is the reference; 0 for none."""
    has_sinks: bool = False
    """A GPT-OSS instead of a Qwen3."""
    batching: str | None = None
    """Value of `Batching`; None for the fastest."""
    is_hybrid: bool = False
    """Qwen3.5, one of whose layers is a gated delta rule."""

    @property
    def lora(self) -> LoraOptions | None:
        """Options of the adapters; by default peft would adapt joined experts too."""
        layers = ("q_proj", "k_proj", "v_proj", "o_proj") if self.experts else None
        return LoraOptions(rank=self.lora_rank, alpha=6, target_modules=layers) if self.lora_rank else None


def model_of(case: Case) -> PreTrainedModel:
    """Returns a Qwen3 of two layers with random weights that bf16 can represent."""
    sizes: dict[str, Any] = {
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": case.is_tied,
        "initializer_range": 0.02,
    }
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    linear |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    types = ["linear_attention", "full_attention"]
    hybrid: Any = CONFIG_MAPPING["qwen3_5_text"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel
        if case.is_hybrid:
            model = AutoModelForCausalLM.from_config(hybrid(layer_types=types, **linear, **sizes))
        elif case.has_sinks:
            model = GptOssForCausalLM(
                GptOssConfig(num_local_experts=3, num_experts_per_tok=2, sliding_window=6, **sizes)
            )
        elif case.experts:
            sizes |= {"moe_intermediate_size": 32, "num_experts": case.experts, "num_experts_per_tok": 2}
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes))
        else:
            model = Qwen3ForCausalLM(Qwen3Config(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


def batch_of(*, groups: int, members: int, long: int = 0, seed: int = 0) -> Batch:
    """Returns groups of `members` rows, then a group of one, whose answer has `long` tokens more."""
    draws = np.random.default_rng(seed)
    rows = []
    for group in range(groups + 1):
        prompt = draws.integers(0, 131, draws.integers(3, 9))
        is_alone = group == groups
        for member in range(1 if is_alone else members):
            answer = draws.integers(0, 131, draws.integers(2, 9) + (long if is_alone else 0))
            trajectory = Trajectory(
                policy=PolicyId("solver"),
                tokens=np.concatenate([prompt, answer]).astype(np.int32),
                logprobs=draws.normal(-4.9, 0.1, len(answer)).astype(np.float32),
                spans=(
                    Span(author=Author.CONTEXT, length=len(prompt)),
                    Span(author=Author.MODEL, length=len(answer), version=Version(0)),
                ),
                reward=float(draws.integers(0, 2)),
            )
            name = f"train:1.{group}"
            rows.append(
                Row(group=GroupId(name), task=TaskId(f"{name}/{member}"), node=NodeId("node-1"), trajectory=trajectory)
            )
    return Batch(
        id=BatchId("solver:1"), policy=PolicyId("solver"), version=Version(0), is_redelivered=False, rows=tuple(rows)
    )


def reference_gradient(case: Case, batch: Batch) -> dict[str, Tensor]:
    """Returns the gradient of a loss with the rewards as advantages, or those of a critic, one row at a time, with full
    logits, in float64; with adapters and a reference also that of k3 to the model without them."""
    model: Any = model_of(case)
    weights = named_weights(model)
    if case.experts or case.has_sinks:
        model.set_experts_implementation("eager")  # the others cannot compute in float64
    if case.lora is not None:
        model, weights = peft_adapters(model, case.lora)
    model = model.double()
    critic = PlainCritic(deepcopy(model)) if case.has_critic else None
    total = sum(row.trajectory.model_tokens for row in batch.rows)
    for row in batch.rows:
        trajectory = row.trajectory
        if case.replays:
            force_experts(model, [trajectory], len(trajectory.tokens), mixture_of(case))
        ids = torch.from_numpy(trajectory.tokens.astype(np.int64))
        distribution = model(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
        places = torch.from_numpy(np.flatnonzero(trajectory.loss_mask()))
        logprobs = distribution[places - 1, ids[places]]
        gains = [trajectory.reward] * len(places) if critic is None else critic.advantages(trajectory)
        advantages = torch.tensor(gains)
        losses = PLAIN_LOSSES[case.loss][1](logprobs, torch.from_numpy(trajectory.logprobs), advantages)
        if case.lora is not None and case.has_reference:
            with torch.no_grad(), model.disable_adapter():
                base = model(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)[places - 1, ids[places]]
            losses = losses + (base - logprobs).exp() - 1 - (base - logprobs)
        (losses.sum() / total).backward()
    gradients = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad for name, weight in weights.items()
    }
    if critic is not None:
        gradients |= critic.gradients([row.trajectory for row in batch.rows], [1 / total] * len(batch.rows))
    return gradients


class _RecordingEngine(FsdpEngine):
    """Keeps the weights: an update does nothing, so the gradient stays in the model."""

    def update(self, *, role: ModelRole = ModelRole.POLICY, is_loss_finite: bool) -> UpdateResult:
        return UpdateResult(grad_norm=0.0, learning_rate=0.0, is_skipped=not is_loss_finite)


class GradientWork:
    """Computes gradients on one rank."""

    def __init__(self, message: Message, device: torch.device) -> None:
        self.calls = 0

    @property
    def commands(self) -> Mapping[str, Callable[[Message], Message]]:
        return {"gradient": self.gradient}

    def gradient(self, message: Message) -> Message:
        """Returns the whole gradient of this rank's share, and the metrics."""
        case = Case(**message.facts["case"])
        model = model_of(case)
        adapters = adapters_of(model, case.lora)
        engine = _RecordingEngine(
            StoredModel(model=model, read=None),
            EngineSpec(
                optimizer=OptimizerOptions(),
                critic=OptimizerOptions() if case.has_critic else None,
                device=CPU,
                published_dtype=weights_dtype_of(case.published),
                needs_reference=case.has_reference,
                adapters=adapters,
                batching=None if case.batching is None else Batching(case.batching),
                recompute=case.recompute,  # type: ignore[arg-type]  # JSON
                replays_experts=case.replays,
            ),
            Sharding(
                mesh=RankMesh.create(CPU, replicas=case.replicas, sequence_ranks=case.sequence_ranks),
                compute_dtype=torch.bfloat16 if case.is_bfloat16 else torch.float32,
                syncs_each_pack=case.syncs_each_pack,
            ),
        )
        result = StepRunner(engine, algorithm(case)).run(Share.decode(message.facts["share"], message.arrays))
        gradients = {name: weight.grad for name, weight in trained_weights(model, adapters).items()}
        if case.has_critic:
            critic = engine._trained[ModelRole.CRITIC].scorer
            while not hasattr(critic, "model"):  # of slices
                critic = critic.scorer
            gradients |= {f"critic/{name}": weight.grad for name, weight in named_weights(critic.model).items()}
        batching = engine.batching.value
        held = {name: _elements(weight) for name, weight in engine.weights().items()}
        return Message(
            facts={"loss": result.loss, "means": dict(result.token_means), "held": held, "batching": batching},
            arrays={name: _whole(gradient).numpy() for name, gradient in gradients.items() if gradient is not None},
        )


def mixture_of(case: Case) -> Mixture:
    """Returns the shape of the model's mixture."""
    return Mixture(layers=2, chosen=2, experts=case.experts)


def with_experts(case: Case, batch: Batch) -> Batch:
    """Returns a batch with recorded experts, if the case replays them."""
    if not case.replays:
        return batch
    rows = Rows.of(batch.rows)
    parts = [replace(row.trajectory, token_columns=expert_column(row.trajectory, mixture_of(case))) for row in rows]
    return replace(batch, rows=tuple(replace(row, trajectory=part) for row, part in zip(rows, parts, strict=True)))


def algorithm(case: Case) -> AlgorithmConfig:
    """Returns an algorithm with the rewards as advantages."""
    loss = {
        **PLAIN_LOSSES[case.loss][0],
        "aggregation": "token_mean",
        **({"kl_coefficient": 1.0} if case.has_reference else {}),
    }
    advantages = ALGORITHM if case.has_critic else {"advantages": ()}
    return AlgorithmConfig.model_validate({**advantages, "loss": loss, "max_mismatch": None})


def facts_of(case: Case, share: Share) -> Message:
    """Returns the command `gradient`."""
    facts, arrays = share.encode()
    return Message(facts={"case": asdict(case), "share": facts}, arrays=arrays)


def _whole(gradient: Tensor) -> Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def _elements(weight: Tensor) -> int:
    return weight.to_local().numel() if isinstance(weight, DTensor) else weight.numel()


def work_of(_: Any = None) -> GradientWork:
    """Returns the first rank's own part."""
    return GradientWork(Message(facts={}), CPU)


if __name__ == "__main__":
    logs.configure()
    torch.set_num_threads(1)
    run_rank(GradientWork)
