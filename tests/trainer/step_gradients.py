"""Gradients of whole steps, by the trainer's engines and by a reference that shares no code with them."""

import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.contract.weights import Dtype
from astraflow.models.causal import named_weights
from astraflow.trainer.engines.adapters import Adapters, LoraOptions, trained_weights
from astraflow.trainer.engines.base import Batching, ModelRole, UpdateResult
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.runner import StepRunner
from astraflow.trainer.step.shares import Share
from tests.trainer.plain_critic import ALGORITHM, PlainCritic
from tests.trainer.plain_experts import expert_column, force_experts
from tests.trainer.plain_losses import PLAIN_LOSSES

VOCABULARY = 61

Gradients: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step: model, batch, algorithm, and how it is packed."""

    micro_batch_tokens: int = 1 << 20
    is_tied: bool = True
    experts: int = 0
    window: int = 0
    """Tokens that a token attends to in the first of two layers; 0: all."""
    loss: str = "ppo"
    """Name in `PLAIN_LOSSES`."""
    aggregation: str = "token_mean"
    minibatches: int = 1
    temperature: float = 0.8
    entropy_coefficient: float = 0.01
    has_critic: bool = False
    balance: float = 0.0
    """Weight of the loss for the balance of experts, which the reference does not have."""
    head: int = 0
    """Most likely tokens of the engine that were recorded, for the loss `reinforce, tis` with centering."""
    replays: bool = False
    """Replays the experts of `expert_column`, with four experts in each layer."""
    teacher: tuple[int, float] | None = None
    """Most likely tokens of a teacher, and the mixture of the divergence from it; None without a teacher."""
    lora: LoraOptions | None = None
    """Adapters, which then are all that is trained."""
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the engine, which change no result."""
    batch: Batch = field(default_factory=lambda: mixed_batch())

    @property
    def algorithm(self) -> AlgorithmConfig:
        """Options of the algorithm."""
        options, _ = PLAIN_LOSSES[self.loss]
        loss: dict[str, Any] = {**options, "aggregation": self.aggregation}
        if self.head:
            loss["centering"] = self.head
        if self.teacher:
            tokens, mixture = self.teacher
            loss |= {"teacher_coefficient": 0.7, "teacher_tokens": tokens, "teacher_mixture": mixture}
        if self.entropy_coefficient:
            loss["entropy_coefficient"] = self.entropy_coefficient
        if self.aggregation == "fixed_length":
            loss["fixed_length"] = 7
        advantages = ALGORITHM if self.has_critic else {"advantages": ({"kind": "group_centred"},)}
        return AlgorithmConfig.model_validate(
            {
                "loss": loss,
                "temperature": self.temperature,
                "minibatches": self.minibatches,
                "balance_coefficient": self.balance,
                "teachers": {"large": {"model": {"kind": "tiny"}}} if self.teacher else {},
                **advantages,
            }
        )


def tiny_model(*, is_tied: bool, experts: int = 0, window: int = 0, seed: int = 3) -> PreTrainedModel:
    """Returns a small Qwen3 with grouped keys, always the same; with experts, two of which compute a token."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": is_tied,
        "initializer_range": 0.02,
    }
    if window:
        layer_types = ["sliding_attention", "full_attention"]
        sizes |= {"use_sliding_window": True, "sliding_window": window, "layer_types": layer_types}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not experts:
            return Qwen3ForCausalLM(Qwen3Config(**sizes))
        return Qwen3MoeForCausalLM(
            Qwen3MoeConfig(moe_intermediate_size=16, num_experts=experts, num_experts_per_tok=2, **sizes)
        )


MIXTURE = Mixture(layers=2, chosen=2, experts=4)


def teacher_model() -> PreTrainedModel:
    """Returns a teacher, whose distributions are less even than those of small random weights."""
    model = tiny_model(is_tied=False, seed=4)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    return model


def mixed_batch(*, head: int = 0, support: int = 0, experts: bool = False) -> Batch:
    """Returns groups of different sizes: a shared prompt, two turns, one row, a long row, a row without an answer.

    head: most likely tokens of a random engine that are recorded of each token, some of them absent; 0: none. support:
    size of the largest kept sets, some of them absent; 0: none is recorded. experts: those of `expert_column`.
    """
    draws = np.random.default_rng(5)
    rows = []
    for group, (prompt_length, answers) in enumerate(
        [(9, [3, 1, 8, 5]), (2, [4, 2]), (5, [6]), (40, [90, 2, 7]), (3, [0, 3])]
    ):
        prompt = draws.integers(0, VOCABULARY, prompt_length)
        rows += [_row(draws, group, member, prompt, length) for member, length in enumerate(answers)]
    if head:
        rows = [replace(row, trajectory=_with_head(row.trajectory, draws, head)) for row in rows]
    if support:
        rows = [replace(row, trajectory=_with_support(row.trajectory, draws, support)) for row in rows]
    batch = Batch(
        id=BatchId("solver:1"), policy=PolicyId("solver"), version=Version(0), is_redelivered=False, rows=tuple(rows)
    )
    return _with_experts(batch) if experts else batch


def branching_batch(*, head: int = 0, support: int = 0, experts: bool = False) -> Batch:
    """Returns a group whose rows begin alike in what the model wrote: an agent's session with branches of branches, its
    context read by a sub-agent, a version change in between, two equal rows, and one that ends within another."""
    draws = np.random.default_rng(6)
    stretches = [draws.integers(0, VOCABULARY, length) for length in (30, 12, 5, 20, 9, 17, 6, 21)]
    prompt, first, observation, second, tool, third, question, fourth = stretches
    written, context = Author.MODEL, Author.CONTEXT
    session = [(context, prompt), (written, first), (context, observation), (written, second)]
    branches: list[list[tuple[Author, np.ndarray[Any, Any]]]] = [
        [*session, (context, tool), (written, third)],
        [*session, (context, tool), (written, third[:8]), (written, fourth)],
        [*session[:3], (written, second[:7]), (context, question), (written, fourth)],
        [(context, np.concatenate([part for _, part in session])), (context, question), (written, third)],
        session,
        session,
        [(context, prompt), (written, fourth)],
        [(context, draws.integers(0, VOCABULARY, 11)), (written, third)],
    ]
    rows = [
        _branch(draws, pieces, task=number % 3, role=("", "helper")[number == 3])
        for number, pieces in enumerate(branches)
    ]
    batch = mixed_batch(head=head, support=support)
    if head:
        rows = [replace(row, trajectory=_with_head(row.trajectory, draws, head)) for row in rows]
    if support:
        rows = [replace(row, trajectory=_with_support(row.trajectory, draws, support)) for row in rows]
    whole = replace(batch, rows=(*batch.rows, *rows))
    return _with_experts(whole) if experts else whole


def _branch(
    draws: np.random.Generator, pieces: Sequence[tuple[Author, np.ndarray[Any, Any]]], *, task: int, role: str
) -> Row:
    lengths = [len(part) for author, part in pieces if author is Author.MODEL]
    trajectory = Trajectory(
        policy=PolicyId("solver"),
        tokens=np.concatenate([tokens for _, tokens in pieces]).astype(np.int32),
        logprobs=draws.normal(-4.2, 0.7, sum(lengths)).astype(np.float32),
        spans=tuple(
            Span(author=author, length=len(tokens), version=Version(-number % 2) if author is Author.MODEL else None)
            for number, (author, tokens) in enumerate(pieces)
        ),
        reward=float(draws.normal()),
        role=role,
    )
    return Row(group=GroupId("train:9"), task=TaskId(f"train:9/{task}"), node=NodeId("node-1"), trajectory=trajectory)


def _with_experts(batch: Batch) -> Batch:
    columns = [expert_column(row.trajectory, MIXTURE) for row in batch.rows]
    return replace(
        batch,
        rows=tuple(
            replace(row, trajectory=replace(row.trajectory, token_columns=own))
            for row, own in zip(batch.rows, columns, strict=True)
        ),
    )


def _with_head(trajectory: Trajectory, draws: np.random.Generator, head: int) -> Trajectory:
    count = trajectory.model_tokens
    engine = torch.from_numpy(draws.normal(0, 2, (count, VOCABULARY))).log_softmax(-1)
    logprobs, tokens = engine.topk(head, -1)
    if count:  # of one token nothing was recorded
        logprobs[0], tokens[0] = -torch.inf, -1
    columns = {
        TokenColumn.TOP_TOKENS: tokens.numpy().astype("<i4"),
        TokenColumn.TOP_LOGPROBS: logprobs.numpy().astype("<f2"),
    }
    return replace(trajectory, token_columns=columns)


def _with_support(trajectory: Trajectory, draws: np.random.Generator, size: int) -> Trajectory:
    """Returns the trajectory with kept sets of the sampled token and others, except for its second token, and with the
    temperatures of some."""
    everything = np.tile(np.arange(VOCABULARY, dtype="<i4"), (trajectory.model_tokens, 1))
    kept = draws.permuted(everything, axis=1)[:, :size]
    for row, token in enumerate(trajectory.tokens[trajectory.loss_mask()]):
        others = kept[row, kept[row] != token][: draws.integers(size)]
        kept[row] = [token, *others, *[-1] * (size - 1 - len(others))]
    kept[1:2] = -1
    temperatures = draws.choice([0, 0.5, 1.5], (len(kept), 1)).astype("<f4")
    columns = {TokenColumn.SUPPORT: kept, TokenColumn.TEMPERATURE: temperatures}
    return replace(trajectory, token_columns={**trajectory.token_columns, **columns})


def _row(draws: np.random.Generator, group: int, member: int, prompt: np.ndarray[Any, Any], length: int) -> Row:
    pieces: list[tuple[Author, np.ndarray[Any, Any]]] = [(Author.CONTEXT, prompt)]
    if length:
        pieces.append((Author.MODEL, draws.integers(0, VOCABULARY, length)))
    if length > 4:  # a second turn
        pieces.append((Author.CONTEXT, draws.integers(0, VOCABULARY, 3)))
        pieces.append((Author.MODEL, draws.integers(0, VOCABULARY, 2)))
    written = sum(len(tokens) for author, tokens in pieces if author is Author.MODEL)
    return Row(
        group=GroupId(f"train:{group}"),
        task=TaskId(f"train:{group}/{member}"),
        node=NodeId("node-1"),
        trajectory=Trajectory(
            policy=PolicyId("solver"),
            tokens=np.concatenate([tokens for _, tokens in pieces]).astype(np.int32),
            logprobs=draws.normal(-4.2, 0.7, written).astype(np.float32),
            spans=tuple(
                Span(author=author, length=len(tokens), version=Version(0) if author is Author.MODEL else None)
                for author, tokens in pieces
            ),
            reward=float(draws.normal()),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """Gradients of the optimizer steps of a batch, before clipping, and the losses. Those of a critic have the prefix
    `critic/`."""

    gradients: Sequence[Gradients]
    members: Sequence[Sequence[int]]
    """Trained rows of each optimizer step."""
    loss: float
    """Mean over the optimizer steps."""


def local_step(case: Case) -> Step:
    """Runs a step on the local engine."""
    return sequential_step(case, data_ranks=1)


def divided_step(case: Case) -> Step:
    """Runs the shares of four ranks, some of which may be empty, one after the other; gradients and losses add up."""
    return sequential_step(case, data_ranks=4)


def sequential_step(case: Case, *, data_ranks: int) -> Step:
    """Runs the shares of a step, each on a local engine; no weight changes between its optimizer steps."""
    planner = StepPlanner(
        case.algorithm,
        data_ranks=data_ranks,
        micro_batch_tokens=case.micro_batch_tokens,
        cost=ForwardCost.of_model(tiny_model(is_tied=case.is_tied, experts=case.experts, window=case.window)),
        batching=case.engine_options.get("batching", Batching.PACKED),
    )
    shares = planner.plan(case.batch).shares
    results = [_share_step(case, share) for share in shares]
    gradients = [
        {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}
        for parts in zip(*(step_gradients for step_gradients, _ in results), strict=True)
    ]
    members = [batch.lengths.nonzero()[:, 0].tolist() for batch in shares[0].optimizer_batches]
    return Step(gradients=gradients, members=members, loss=sum(loss for _, loss in results))


def _share_step(case: Case, share: Share) -> tuple[list[Gradients], float]:
    """Returns the gradients of the optimizer steps, and the loss."""
    model = tiny_model(is_tied=case.is_tied, experts=case.experts, window=case.window)
    adapters = adapters_of(model, case.lora)
    options = OptimizerOptions(learning_rate=1e-30)
    engine = LocalEngine(
        model,
        EngineSpec(
            optimizer=options,
            critic=options if case.has_critic else None,
            device=torch.device("cpu"),
            published_dtype=Dtype.FLOAT32,
            needs_reference=False,
            adapters=adapters,
            balances_experts=case.balance > 0,
            replays_experts=case.replays,
            **case.engine_options,
        ),
        teachers={"large": teacher_model()} if case.teacher else None,
    )
    gradients: list[Gradients] = []
    update = engine.update

    def recording(*, role: ModelRole = ModelRole.POLICY, is_loss_finite: bool) -> UpdateResult:
        if role is ModelRole.POLICY:
            weights, prefix = trained_weights(model, adapters), ""
            gradients.append({})
        else:
            weights, prefix = named_weights(engine._scorers[role].model), "critic/"
        for name, weight in weights.items():
            if weight.grad is not None:
                gradients[-1][f"{prefix}{name}"] = weight.grad.clone()
        return update(role=role, is_loss_finite=is_loss_finite)

    engine.update = recording  # type: ignore[method-assign]
    loss = StepRunner(engine, case.algorithm).run(share).loss
    return gradients, loss


ENGINES: Mapping[str, Callable[[Case], Step]] = {"local": local_step, "shares": divided_step}
"""Engine -> a step on it."""


def adapters_of(model: PreTrainedModel, options: LoraOptions | None) -> Adapters | None:
    """Adds adapters to a model, none of them 0."""
    if options is None:
        return None
    adapters = Adapters.add(model, options, published_dtype=Dtype.FLOAT32, seed=0)
    fill_adapters(adapters.weights())
    return adapters


def peft_adapters(model: PreTrainedModel, options: LoraOptions) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """Returns a model with the same adapters, added by peft alone, and their parameters by published name."""
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]  # peft declares an int
        target_modules=list(options.target_modules or ()) or "all-linear",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses names that transformers renamed
        adapted = get_peft_model(model, config)
    weights = {
        name.removeprefix("base_model.model.").replace(".default.", "."): weight
        for name, weight in adapted.named_parameters()
        if weight.requires_grad
    }
    fill_adapters(weights)
    return adapted, weights


@torch.no_grad()
def fill_adapters(weights: Mapping[str, Tensor]) -> None:
    """Fills adapters with values that depend on their names only and that bf16 can represent."""
    for name, weight in weights.items():
        draws = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        weight.copy_(torch.randn(weight.shape, generator=draws).mul_(0.1).bfloat16())


def reference_gradients(case: Case, members: Sequence[int]) -> tuple[Gradients, float]:
    """Returns gradient and loss of one optimizer step over these rows: padded rows, transformers' own
    forward pass, full logits, plain autograd, in float64."""
    model: Any = tiny_model(is_tied=case.is_tied, experts=case.experts, window=case.window)
    model.set_experts_implementation("eager")
    weights = dict(model.named_parameters())
    if case.lora is not None:
        model, weights = peft_adapters(model, case.lora)
    model = model.double()
    rows = [case.batch.rows[index].trajectory for index in members]
    width = max(len(row.tokens) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    is_token = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : len(row.tokens)] = torch.from_numpy(row.tokens)
        is_token[number, : len(row.tokens)] = True
    if case.replays:
        force_experts(model, rows, width, MIXTURE)
    logits = model(input_ids=ids, attention_mask=is_token.long()).logits
    taught = None
    if case.teacher:
        with torch.no_grad():
            teacher: Any = teacher_model().double()
            scores = teacher(input_ids=ids, attention_mask=is_token.long()).logits / case.temperature
        taught = scores.log_softmax(-1)
    critic = PlainCritic(tiny_model(is_tied=case.is_tied)) if case.has_critic else None
    gains = _gains(case.batch)
    total = sum(row.model_tokens for row in rows)
    loss = torch.zeros(())
    for number, (index, row) in enumerate(zip(members, rows, strict=True)):
        weight = {
            "token_mean": 1 / total,
            "sequence_mean": 1 / (len(rows) * row.model_tokens),
            "fixed_length": 1 / (len(rows) * 7),
        }[case.aggregation]
        advantages = [gains[index]] * row.model_tokens if critic is None else critic.advantages(row)
        places = np.flatnonzero(row.loss_mask())
        distribution, entropy = _distribution(logits[number, places - 1], row, case.temperature)
        logprobs = distribution[torch.arange(len(places)), ids[number, places]]
        losses = PLAIN_LOSSES[case.loss][1](logprobs, torch.from_numpy(row.logprobs), torch.tensor(advantages))
        loss = loss + weight * (losses - case.entropy_coefficient * entropy).sum()
        if case.head:
            drifts = _drifts(distribution, row)
            loss = loss + weight * (torch.tensor(advantages) * drifts).sum()
        if case.teacher and taught is not None:
            gaps = _gaps(distribution, taught[number, places - 1], *case.teacher)
            loss = loss + weight * 0.7 * gaps.sum()
    loss.backward()
    gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
    if critic is not None:
        gradients |= critic.gradients(rows, [1 / total] * len(rows))
    return gradients, float(loss.detach())


def _distribution(logits: Tensor, row: Trajectory, temperature: float) -> tuple[Tensor, Tensor]:
    """Returns the logprobs of each token's distribution, -inf outside of its kept set, and the entropies."""
    temperatures = row.token_columns.get(TokenColumn.TEMPERATURE, np.zeros((len(logits), 1)))
    logits = logits / torch.from_numpy(np.where(temperatures > 0, temperatures, temperature))
    sets = row.token_columns.get(TokenColumn.SUPPORT, np.full((len(logits), 1), -1))
    logprobs, entropies = [torch.full_like(logits[:0], 0)], [logits[:0, 0]]
    for values, kept in zip(logits, sets, strict=True):
        ids = torch.from_numpy(kept[kept >= 0].astype(np.int64)) if kept[0] >= 0 else torch.arange(len(values))
        own = values[ids].log_softmax(-1)
        logprobs.append(torch.full_like(values, -torch.inf).index_copy(0, ids, own)[None])
        entropies.append(-(own.exp() * own).sum()[None])
    return torch.cat(logprobs), torch.cat(entropies)


def _drifts(distribution: Tensor, row: Trajectory) -> Tensor:
    """Returns the term of score centering of each token for weights truncated at 2, by the table of its paper."""
    drifts = []
    tokens = torch.from_numpy(row.token_columns[TokenColumn.TOP_TOKENS].astype(np.int64))
    recorded = torch.from_numpy(row.token_columns[TokenColumn.TOP_LOGPROBS].astype(np.float64))
    for logprobs, ids, engine in zip(distribution, tokens, recorded, strict=True):
        if ids[0] < 0:
            drifts.append(torch.zeros((), dtype=torch.float64))
            continue
        head = logprobs[ids]
        p, q = head.detach().exp(), engine.exp()
        rho = (1 - q.sum()) / max(1 - p.sum(), 1e-6)
        m, alpha = p.minimum(2 * q), torch.tensor(1.0).minimum(2 * rho)
        drifts.append(((m - alpha * p) * head).sum())
    return torch.stack(drifts) if drifts else distribution.new_zeros(0)


def _gaps(policy: Tensor, teacher: Tensor, count: int, mixture: float) -> Tensor:
    """Returns the divergence from the teacher at each token, with all but its `count` most likely tokens as one."""
    gaps = []
    for own, theirs in zip(policy, teacher, strict=True):
        is_head = torch.zeros(VOCABULARY, dtype=torch.bool)
        is_head[theirs.topk(count).indices] = True
        p, t = (torch.cat([each[is_head], each[~is_head].sum()[None]]) for each in (own.exp(), theirs.exp()))
        if count == VOCABULARY:
            p, t = p[:-1], t[:-1]
        middle = mixture * t + (1 - mixture) * p
        forward, reverse = (t * (t / middle).log()).sum(), (p * (p / middle).log()).sum()
        whole = {0.0: (t * (t / p).log()).sum(), 1.0: (p * (p / t).log()).sum()}
        gaps.append(whole.get(mixture, mixture * forward + (1 - mixture) * reverse))
    return torch.stack(gaps) if gaps else policy.new_zeros(0)


def _gains(batch: Batch) -> list[float]:
    """Returns the rewards minus the mean of the rows of the group that have an answer."""
    counted = [row for row in batch.rows if row.trajectory.model_tokens]
    means = {
        group: np.mean([row.trajectory.reward for row in counted if row.group == group])
        for group in {row.group for row in counted}
    }
    return [float(row.trajectory.reward - means.get(row.group, 0.0)) for row in batch.rows]


def largest_difference(actual: Gradients, expected: Gradients) -> float:
    """Returns the largest difference of any element, in units of the largest gradient of its model."""
    assert actual.keys() == expected.keys()
    shares = []
    for is_critic in (False, True):
        names = [name for name in expected if name.startswith("critic/") is is_critic]
        largest = max((float(expected[name].abs().max()) for name in names), default=1.0)
        shares += [float((actual[name] - expected[name]).abs().max()) / largest for name in names]
    return max(shares)
