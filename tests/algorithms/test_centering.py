"""Score centering: the mean of the weighted scores over the engine's samples is zero for a constant advantage."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from astraflow.algorithms.losses import losses
from astraflow.algorithms.tokens import BatchStatistics, RowData, SingleRank, TokenData, TokenScores
from astraflow.contract.errors import InvalidInput

VOCABULARY = 12
TIS = {"kind": "tis", "cap": 1.5}
ICEPOP = {"kind": "icepop", "low": 0.5, "high": 2.0}
LOSSES: list[dict[str, Any]] = [
    {"kind": "reinforce"},
    {"kind": "reinforce", "corrections": [TIS]},
    {"kind": "reinforce", "corrections": [ICEPOP]},
    {"kind": "reinforce", "anchor": "behaviour"},
    {"kind": "ppo"},
    {"kind": "ppo", "anchor": "current", "corrections": [TIS]},
    {"kind": "ppo", "clip_high": 0.5, "dual_clip": 1.5},
    {"kind": "cispo", "clip_high": 0.5, "clip_low": 0.3},
    {"kind": "sapo", "aggregation": "token_mean"},
    {"kind": "decoupled_ppo", "weight_cap": 1.5},
    {"kind": "m2po", "threshold": 0.1},
]


def distributions(seed: int, *, head: int = VOCABULARY) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the trainer's logits, the engine's logprobs, whose tail is that of the trainer up to a factor, and the
    ids of its head."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(VOCABULARY, generator=generator, dtype=torch.float64).mul(2).requires_grad_()
    engine = (logits.detach() + torch.randn(VOCABULARY, generator=generator, dtype=torch.float64)).log_softmax(-1)
    ids = engine.argsort(descending=True)[:head]
    if head < VOCABULARY:
        tail = torch.ones(VOCABULARY, dtype=torch.bool)
        tail[ids] = False
        share = engine[tail].exp().sum() / logits.detach().softmax(-1)[tail].sum()
        engine = torch.where(tail, logits.detach().log_softmax(-1) + share.log(), engine)
    return logits, engine, ids


def token_data(token: int, engine: Tensor, advantage: float, current: Tensor, ids: Tensor | None) -> TokenData:
    number = torch.zeros(1, dtype=torch.int64)
    return TokenData(
        row_indices=number,
        turn_indices=number,
        behaviour_logprobs=engine[token : token + 1],
        is_own_version=number.bool(),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        current_logprobs=current[token : token + 1],
        proximal_logprobs=current[token : token + 1],
        top_tokens=None if ids is None else ids[None],
        top_logprobs=None if ids is None else engine[ids][None],
    )


def statistics() -> BatchStatistics:
    counts = torch.ones(1, dtype=torch.int64)
    rows = RowData(
        groups=counts,
        slots=counts,
        weights=counts.float(),
        is_counted=counts.bool(),
        lengths=counts,
        is_truncated=~counts.bool(),
    )
    return BatchStatistics(tokens=1, trajectories=1, lengths=counts, rows=rows)


def mean_gradient(spec: dict[str, Any], logits: Tensor, engine: Tensor, advantage: float, ids: Tensor | None) -> Tensor:
    """Returns the mean of the loss's gradient over samples of the engine, exactly: every token by its probability."""
    loss, batch = losses.build(spec), statistics()
    logprobs = logits.log_softmax(-1)
    current = logprobs.detach()
    every = [token_data(token, engine, advantage, current, ids) for token in range(VOCABULARY)]
    whole = TokenData(
        **{
            name: torch.cat([getattr(part, name) for part in every])
            for name in ("row_indices", "turn_indices", "behaviour_logprobs", "is_own_version", "advantages")
        },
        current_logprobs=current,
    )
    state = loss.prepare(whole, batch, SingleRank())
    total = torch.zeros((), dtype=torch.float64)
    for token, data in enumerate(every):
        scores = TokenScores(
            logprobs=logprobs[token : token + 1],
            entropy=torch.zeros(1, dtype=torch.float64),
            top_logprobs=None if ids is None else logprobs[ids][None],
        )
        total = total + engine[token].exp() * loss(scores, data, batch, state).loss
    (gradient,) = torch.autograd.grad(total, logits)
    return gradient


@pytest.mark.parametrize("head", [VOCABULARY, 4])
@pytest.mark.parametrize("advantage", [1.0, -0.7])
@pytest.mark.parametrize("spec", LOSSES, ids=str)
def test_a_constant_advantage_has_no_gradient_in_the_mean(spec: dict[str, Any], advantage: float, head: int) -> None:
    for seed in range(3):
        logits, engine, ids = distributions(seed, head=head)
        centred = mean_gradient({**spec, "centering": 8}, logits, engine, advantage, ids)
        assert float(centred.abs().max()) < 1e-9


def test_without_centering_a_constant_advantage_moves_the_policy() -> None:
    logits, engine, ids = distributions(0)
    assert float(mean_gradient({"kind": "reinforce"}, logits, engine, 1.0, ids).abs().max()) > 0.01


def test_exact_importance_weights_have_no_drift_to_subtract() -> None:
    logits, engine, ids = distributions(1, head=4)
    plain = {"kind": "reinforce", "anchor": "behaviour"}
    without, centred = (
        mean_gradient({**plain, "centering": centering}, logits, engine, 1.0, ids) for centering in (0, 8)
    )
    assert torch.allclose(without, centred, atol=1e-9)


def test_a_token_without_a_recorded_head_is_not_centred() -> None:
    logits, engine, ids = distributions(2)
    absent = torch.full((1, 4), -torch.inf, dtype=torch.float64)
    data = token_data(0, engine, 1.0, logits.detach().log_softmax(-1), ids[:4])
    loss, batch = losses.build({"kind": "reinforce", "centering": 8}), statistics()
    data = TokenData(**{name: getattr(data, name) for name in TokenData.__slots__} | {"top_logprobs": absent})
    logprobs = logits.log_softmax(-1)
    scores = TokenScores(logprobs=logprobs[:1], entropy=logprobs[:1], top_logprobs=logprobs[ids[:4]][None])
    result = loss(scores, data, batch, loss.prepare(data, batch, SingleRank()))
    assert float(result.metric_sums["centering_size"]) == 0
    assert float(result.metric_sums["head_mass"]) == 0
    assert float(result.metric_sums["outside_head"]) == 1
    assert float(result.loss.detach()) == -1


@pytest.mark.parametrize("corrections", [[], [TIS]])
def test_a_step_reports_the_head_and_the_size_of_what_is_subtracted(corrections: list[dict[str, Any]]) -> None:
    logits, engine, ids = distributions(2, head=4)
    engine = engine.half().double()  # as columns are recorded
    current, q = logits.detach().log_softmax(-1), engine.exp()
    loss, batch = losses.build({"kind": "reinforce", "centering": 4, "corrections": corrections}), statistics()
    weight = (current - engine).exp().clamp(max=1.5) if corrections else torch.ones(VOCABULARY)
    rho = (1 - q[ids].sum()) / (1 - current[ids].exp().sum())
    of_tail = rho * ((1 / rho).clamp(max=1.5) if corrections else 1)
    size = 0.7 * (q * weight - of_tail * current.exp())[ids].abs().sum()
    for token in range(VOCABULARY):
        data = token_data(token, engine, -0.7, current, ids)
        logprobs = logits.log_softmax(-1)
        scores = TokenScores(logprobs=logprobs[[token]], entropy=logprobs[[token]], top_logprobs=logprobs[ids][None])
        sums = loss(scores, data, batch, loss.prepare(data, batch, SingleRank())).metric_sums
        assert bool(sums["outside_head"]) == (token not in ids.tolist())
        assert float(sums["head_mass"]) == pytest.approx(float(q[ids].sum()))
        assert float(sums["policy_size"]) == pytest.approx(0.7 * float(weight[token]))
        assert float(sums["centering_size"]) == pytest.approx(float(size))


def test_a_batch_from_before_centering_is_trained_as_it_is() -> None:
    logits, engine, _ = distributions(3)
    with_and_without = [
        mean_gradient({"kind": "reinforce", "centering": centering}, logits, engine, 1.0, None) for centering in (8, 0)
    ]
    assert torch.equal(*with_and_without)


def test_a_loss_with_one_ratio_for_each_trajectory_cannot_be_centred() -> None:
    with pytest.raises((ValidationError, InvalidInput), match="one ratio for each trajectory"):
        losses.check({"kind": "gspo", "centering": 8})
