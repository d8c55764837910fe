"""Losses against references of a few lines, written from the papers in plain Python with derivatives by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.base import Loss
from astraflow.algorithms.losses.cispo import Cispo
from astraflow.algorithms.losses.critic import explained_variance
from astraflow.algorithms.losses.options import AnchoredOptions, PolicyOptions
from astraflow.algorithms.losses.policy_gradient import Objective, PolicyGradient, PolicyTokens
from astraflow.algorithms.losses.ppo import is_clipped
from astraflow.algorithms.tokens import Pass, SingleRank
from astraflow.contract.errors import InvalidInput
from tests.algorithms.data import Rows, Token, assert_close, batch_of, close, on_ranks, outcome, rows
from tests.errors import raises_code

POLICY_LOSSES = [kind for kind in losses.built_in_kinds() if issubclass(losses.options(kind), PolicyOptions)]
"""Kinds that every property of policy losses holds for; a new loss is one of them by its options."""

Term = tuple[float, float]
"""Loss of a token before weighting, and its derivative by the token's logprob."""


def weight(token_rows: Rows, row: list[Token], aggregation: str) -> float:
    count = sum(1 for other in token_rows if other)
    return {
        "token_mean": 1 / sum(len(other) for other in token_rows),
        "sequence_mean": 1 / len(row) / count,
        "fixed_length": 1 / 16 / count,
    }[aggregation]


def check(
    loss: Loss, token_rows: Rows, term: Callable[[Token, list[Token]], Term], aggregation: str = "token_mean"
) -> None:
    """Compares loss and gradient with the sum of `term(token, its row)` over the batch."""
    weighted = [(weight(token_rows, row, aggregation), *term(token, row)) for row in token_rows for token in row]

    result = outcome(loss, batch_of(token_rows))

    assert close(result.loss, sum(factor * value for factor, value, _ in weighted))
    assert_close(result.logprob_grad, [factor * slope for factor, _, slope in weighted])


def clipped(ratio: float, advantage: float, low: float, high: float, dual: float | None = None) -> Term:
    """PPO, equation 7, with clip-higher and dual clip; the derivative of the ratio is the ratio."""
    gain, slope = ratio * advantage, ratio * advantage
    if (cut := min(max(ratio, low), high) * advantage) < gain:
        gain, slope = cut, 0.0
    if dual is not None and advantage < 0 and dual * advantage > gain:
        gain, slope = dual * advantage, 0.0
    return -gain, -slope


@pytest.mark.long
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("dual", [None, 3.0])
@given(token_rows=rows)
def test_ppo_is_the_clipped_ratio(aggregation: str, dual: float | None, token_rows: Rows) -> None:
    options: dict[str, Any] = {"fixed_length": 16} if aggregation == "fixed_length" else {}
    spec = {"kind": "ppo", "clip_high": 0.28, "dual_clip": dual, "aggregation": aggregation, **options}

    def term(t: Token, _: list[Token]) -> Term:
        return clipped(math.exp(t.logprob - t.behaviour), t.advantage, 0.8, 1.28, dual)

    check(losses.build(spec), token_rows, term, aggregation)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["truncate", "mask"])
@given(token_rows=rows)
def test_decoupled_ppo_clips_around_the_proximal_policy(mode: str, token_rows: Rows) -> None:
    def term(t: Token, _: list[Token]) -> Term:
        value, slope = clipped(math.exp(t.logprob - t.proximal), t.advantage, 0.8, 1.2)
        factor = math.exp(t.proximal - t.behaviour)
        factor = min(factor, 5.0) if mode == "truncate" else factor * (factor <= 5)
        return factor * value, factor * slope

    check(losses.build({"kind": "decoupled_ppo", "weight_mode": mode}), token_rows, term)


@pytest.mark.long
@given(rows)
def test_gspo_has_the_gradient_of_the_sequence_ratio(token_rows: Rows) -> None:
    def term(_: Token, row: list[Token]) -> Term:
        ratio = math.exp(sum(t.logprob - t.proximal for t in row) / len(row))
        return clipped(ratio, row[0].advantage, 1 - 3e-4, 1 + 4e-4)  # d ratio / d l_t = ratio / len, in the weight

    same = [[t._replace(advantage=row[0].advantage) for t in row] for row in token_rows]
    check(losses.build({"kind": "gspo"}), same, term, "sequence_mean")


@pytest.mark.long
@given(rows)
def test_cispo_clips_the_weight_only(token_rows: Rows) -> None:
    def term(t: Token, _: list[Token]) -> Term:
        factor = min(math.exp(t.logprob - t.behaviour), 5.0)
        return -factor * t.advantage * t.logprob, -factor * t.advantage

    check(losses.build({"kind": "cispo"}), token_rows, term)


@pytest.mark.long
@given(rows)
def test_sapo_is_a_gate_by_the_sign_of_the_advantage(token_rows: Rows) -> None:
    def term(t: Token, _: list[Token]) -> Term:
        ratio, steepness = math.exp(t.logprob - t.behaviour), 1.0 if t.advantage > 0 else 1.05
        gate = 1 / (1 + math.exp(-steepness * (ratio - 1)))
        return -gate * 4 / steepness * t.advantage, -4 * gate * (1 - gate) * ratio * t.advantage

    check(losses.build({"kind": "sapo"}), token_rows, term, "sequence_mean")


@pytest.mark.long
@pytest.mark.parametrize("is_symmetric", [False, True])
@given(token_rows=rows)
def test_dppo_masks_by_the_change_of_probability(is_symmetric: bool, token_rows: Rows) -> None:
    def term(t: Token, _: list[Token]) -> Term:
        gap, change = t.logprob - t.behaviour, math.exp(t.logprob) - math.exp(t.behaviour)
        is_masked = abs(change) > 0.1 if is_symmetric else change * math.copysign(1, t.advantage) > 0.2
        gain = 0.0 if is_masked else math.exp(gap) * t.advantage
        return -gain + 1e-3 * gap**2, -gain + 2e-3 * gap

    check(losses.build({"kind": "dppo", "is_symmetric": is_symmetric}), token_rows, term)


@pytest.mark.long
@pytest.mark.parametrize("anchor", ["current", "behaviour", "proximal"])
@given(token_rows=rows)
def test_reinforce_has_no_trust_region(anchor: str, token_rows: Rows) -> None:
    def term(t: Token, _: list[Token]) -> Term:
        old = {"current": t.logprob, "behaviour": t.behaviour, "proximal": t.proximal}[anchor]
        return (-math.exp(t.logprob - old) * t.advantage,) * 2

    check(losses.build({"kind": "reinforce", "anchor": anchor}), token_rows, term)


@pytest.mark.long
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@given(token_rows=rows)
def test_sft_is_the_negative_log_likelihood(aggregation: str, token_rows: Rows) -> None:
    check(
        losses.build({"kind": "sft", "aggregation": aggregation}),
        token_rows,
        lambda t, _: (-t.logprob, -1.0),
        aggregation,
    )


@pytest.mark.long
@pytest.mark.parametrize("clip", [None, 0.2])
@given(token_rows=rows)
def test_the_critic_loss_matches_its_formula(clip: float | None, token_rows: Rows) -> None:
    def term(t: Token) -> Term:
        bounded = t.value if clip is None else min(max(t.value, t.old_value - clip), t.old_value + clip)
        if (t.value - t.target) ** 2 >= (bounded - t.target) ** 2:
            return (t.value - t.target) ** 2 / 2, t.value - t.target
        return (bounded - t.target) ** 2 / 2, 0.0

    result = outcome(losses.build({"kind": "critic", "value_clip": clip}), batch_of(token_rows))

    terms = [term(t) for row in token_rows for t in row]
    assert close(result.loss, sum(value for value, _ in terms) / len(terms))
    # Where both errors are equal, either derivative is right.
    expected = torch.tensor([slope / len(terms) for _, slope in terms], dtype=torch.float64)
    differs = ~torch.isclose(result.value_grad, expected, rtol=1e-9, atol=1e-9)
    ties = [
        clip is not None
        and close(
            (min(max(t.value, t.old_value - clip), t.old_value + clip) - t.target) ** 2, (t.value - t.target) ** 2
        )
        for row in token_rows
        for t in row
    ]
    assert not (differs & ~torch.tensor(ties)).any()


KL: dict[str, Callable[[float], Term]] = {
    "k1": lambda d: (d, 1.0),
    "k2": lambda d: (d * d / 2, d),
    "k3": lambda d: (math.exp(-d) - 1 + d, 1 - math.exp(-d)),
    "k3+": lambda d: (math.exp(-d) - 1 + d, d),
}
"""Estimate and its derivative for d = l - l_ref, inside the bounds."""


@pytest.mark.long
@pytest.mark.parametrize("is_unbiased", [False, True])
@pytest.mark.parametrize("estimator", KL)
@given(token_rows=rows)
def test_the_divergence_penalty_matches_its_estimator(estimator: str, is_unbiased: bool, token_rows: Rows) -> None:
    spec = {"kind": "reinforce", "anchor": "behaviour", "kl_coefficient": 0.5, "kl_estimator": estimator}
    near = [[t._replace(reference=max(t.reference, t.logprob - 2)) for t in row] for row in token_rows]
    near = [[t._replace(reference=min(t.reference, t.logprob + 2)) for t in row] for row in near]

    def term(t: Token, _: list[Token]) -> Term:
        value, slope = KL[estimator](t.logprob - t.reference)
        ratio = math.exp(t.logprob - t.behaviour)
        if is_unbiased:
            value, slope = ratio * value, ratio * (slope + value)
        return -ratio * t.advantage + 0.5 * value, -ratio * t.advantage + 0.5 * slope

    check(losses.build({**spec, "kl_unbiased": is_unbiased}), near, term)


@pytest.mark.parametrize("kind", POLICY_LOSSES)
def test_the_unbiased_divergence_is_weighted_by_the_sampling_policy_whatever_the_anchor(kind: str) -> None:
    token = Token(behaviour=-2.0, advantage=0.0, reference=-1.5)
    spec = {"kind": kind, "kl_unbiased": True, "kl_estimator": "k1"}

    without = outcome(losses.build({"kind": kind}), batch_of([[token]]))
    result = outcome(losses.build({**spec, "kl_coefficient": 1.0}), batch_of([[token]]))

    ratio, difference = math.exp(token.logprob - token.behaviour), token.logprob - token.reference
    assert result.loss - without.loss == pytest.approx(ratio * difference)
    gradient = result.logprob_grad.item() - without.logprob_grad.item()
    assert gradient == pytest.approx(ratio * (difference + 1))


@pytest.mark.parametrize(
    ("estimator", "value", "slope"), [("k1", 20, 0), ("k2", 200, 0), ("k3", 10, 0), ("k3+", 10, 0)]
)
def test_a_huge_divergence_is_bounded(estimator: str, value: float, slope: float) -> None:
    spec = {"kind": "reinforce", "kl_coefficient": 1.0, "kl_estimator": estimator}
    far = 30.0 if estimator in ("k1", "k2") else -30.0

    result = outcome(losses.build(spec), batch_of([[Token(advantage=0.0, reference=-1.0 - far)]]))

    assert result.metrics["kl_reference"] == pytest.approx(value)
    assert result.logprob_grad.item() == pytest.approx(slope)


@pytest.mark.long
@given(rows)
def test_the_entropy_bonus_is_a_mean_over_the_tokens(token_rows: Rows) -> None:
    result = outcome(losses.build({"kind": "reinforce", "entropy_coefficient": 0.01}), batch_of(token_rows))

    assert_close(result.entropy_grad, [-0.01 / len(result.entropy_grad)] * len(result.entropy_grad))


def test_without_a_bonus_an_undefined_entropy_does_not_reach_the_loss() -> None:
    result = outcome(losses.build({"kind": "reinforce"}), batch_of([[Token(entropy=math.nan)]]))

    assert math.isfinite(result.loss)
    assert result.logprob_grad.isfinite().all()


@pytest.mark.parametrize(("behaviour", "expected"), [(-0.05, 0.01 * 0.75), (-0.2, 0.0), (-1.0, 0.0), (0.0, 0.01)])
def test_the_adaptive_bonus_grows_below_the_target(behaviour: float, expected: float) -> None:
    spec = {"kind": "reinforce", "entropy_coefficient": 0.01, "entropy_target": 0.2}

    result = outcome(losses.build(spec), batch_of([[Token(behaviour=behaviour)] * 3, [Token(behaviour=behaviour)]]))

    assert result.metrics["entropy_coefficient"] / 4 == pytest.approx(expected)
    assert_close(result.entropy_grad, [-expected / 4] * 4)


@pytest.mark.long
@given(rows)
def test_at_equal_proximal_and_behaviour_policy_decoupled_ppo_and_tis_are_ppo(token_rows: Rows) -> None:
    same = batch_of([[t._replace(proximal=t.behaviour) for t in row] for row in token_rows])
    expected = outcome(losses.build({"kind": "ppo"}), same)

    for spec in (
        {"kind": "decoupled_ppo"},
        {"kind": "ppo", "anchor": "proximal", "corrections": ({"kind": "tis"},)},
        {"kind": "ppo", "anchor": "proximal", "corrections": ({"kind": "tis", "level": "sequence"},)},
        {"kind": "ppo", "anchor": "proximal", "corrections": ({"kind": "icepop"}, {"kind": "geometric_mask"})},
        {"kind": "ppo", "anchor": "proximal", "corrections": ({"kind": "mis"},)},
    ):
        found_outcome = outcome(losses.build(spec), same)
        assert close(found_outcome.loss, expected.loss)
        assert_close(found_outcome.logprob_grad, expected.logprob_grad)


@pytest.mark.long
@given(rows)
def test_gspo_on_single_tokens_is_ppo(token_rows: Rows) -> None:
    single = batch_of([[t] for row in token_rows for t in row])
    ppo = {"kind": "ppo", "anchor": "proximal", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence_mean"}

    expected, result = outcome(losses.build(ppo), single), outcome(losses.build({"kind": "gspo"}), single)

    assert close(result.loss, expected.loss)
    assert_close(result.logprob_grad, expected.logprob_grad)


@pytest.mark.long
@pytest.mark.parametrize("kind", POLICY_LOSSES)
@given(data=st.data())
def test_on_policy_every_policy_loss_has_the_gradient_of_reinforce(kind: str, data: st.DataObject) -> None:
    token_rows = data.draw(rows)
    own = [[t._replace(behaviour=t.logprob, proximal=t.logprob) for t in row] for row in token_rows]

    result = outcome(losses.build({"kind": kind, "aggregation": "token_mean"}), batch_of(own))

    tokens = [t for row in own for t in row]
    if kind != "gspo" or all(len({t.advantage for t in row}) <= 1 for row in own):
        assert_close(result.logprob_grad, [-t.advantage / len(tokens) for t in tokens])


@pytest.mark.parametrize("recorded", [math.nan, -math.inf])
@pytest.mark.parametrize("kind", POLICY_LOSSES)
def test_a_token_without_recorded_logprob_is_dropped_and_counted(kind: str, recorded: float) -> None:
    corrections = ({"kind": "geometric_mask", "low": 0.5, "high": 2.0}, {"kind": "opsm"})
    options = {"kl_coefficient": 0.1, "entropy_coefficient": 0.1, "entropy_target": 3.0, "corrections": corrections}
    loss = losses.build({"kind": kind, **options})
    kept, dropped, other = Token(behaviour=-1.1), Token(behaviour=recorded, advantage=50.0), Token(advantage=-0.5)

    result = outcome(loss, batch_of([[kept, dropped], [other]]))
    changed = outcome(loss, batch_of([[kept, dropped._replace(advantage=-7.0, logprob=-3.0)], [other]]))

    assert math.isfinite(result.loss)
    assert result.metrics["missing_logprobs"] == 1
    assert all(math.isfinite(value) for value in result.metrics.values())
    assert (result.logprob_grad == 0).tolist() == [False, True, False]
    assert (result.entropy_grad == 0).tolist() == [False, True, False]
    assert_close(changed.logprob_grad, result.logprob_grad)


@pytest.mark.parametrize("kind", POLICY_LOSSES)
@pytest.mark.parametrize("logprob", [-600.0, 0.0])
def test_ratios_that_would_overflow_stay_finite(kind: str, logprob: float) -> None:
    far = batch_of([[Token(logprob=logprob, behaviour=-600.0 - logprob, advantage=-1.0)]])
    anchor = {"anchor": "behaviour"} if issubclass(losses.options(kind), AnchoredOptions) else {}

    result = outcome(losses.build({"kind": kind, **anchor}), far)

    assert math.isfinite(result.loss)
    assert result.logprob_grad.isfinite().all()


def test_clipped_tokens_are_counted() -> None:
    plain = [Token(behaviour=-2.0), Token(behaviour=-2.0, advantage=-1.0), Token(-2.0, -1.0, -1.0), Token(-2.0, -2.0)]
    batch = batch_of([[*plain, Token(behaviour=-2.0, advantage=0.0), Token(-2.0, -1.0, 0.0)]])

    def clipped_tokens(**spec: Any) -> float:
        return outcome(losses.build(spec), batch).metrics["clip_fraction"]

    assert clipped_tokens(kind="ppo") == clipped_tokens(kind="dppo") == 2
    assert clipped_tokens(kind="cispo", clip_high=0.2) == 3, "the weight is clipped for any advantage"
    assert clipped_tokens(kind="cispo", clip_high=0.2, clip_low=0.5) == 5
    assert clipped_tokens(kind="sapo") == clipped_tokens(kind="reinforce", anchor="behaviour") == 0


def test_tokens_at_the_edges_of_the_range_are_inside() -> None:
    ratio = torch.tensor([0.75, 1.25, 0.7, 1.3, 0.7, 1.3, 0.7, 1.3])
    advantages = torch.tensor([-1.0, 1.0, -0.5, 0.5, 0.0, 0.0, 1.0, -1.0])

    assert is_clipped(ratio, advantages, low=0.75, high=1.25).nonzero()[:, 0].tolist() == [2, 3]


def test_cispo_counts_a_weight_at_a_bound_as_not_clipped() -> None:
    loss = losses.build({"kind": "cispo", "clip_low": 0.5, "clip_high": 1.0})
    assert isinstance(loss, Cispo)
    ratio = torch.tensor([0.5, 2.0, 0.49, 2.01])
    tokens = cast("PolicyTokens", SimpleNamespace(ratio=ratio, advantages=torch.ones(4), logprobs=-torch.ones(4)))

    assert loss.objective(tokens, None).is_clipped.tolist() == [False, False, True, True]


def test_cispo_has_a_lower_bound_of_the_weight_if_it_is_set() -> None:
    spec = {"kind": "cispo", "clip_low": 0.5}

    result = outcome(losses.build(spec), batch_of([[Token(logprob=-2.0, behaviour=-1.0, advantage=3.0)]]))

    assert close(result.loss, -0.5 * 3.0 * -2.0)


def test_ratio_metrics_leave_out_tokens_without_recorded_logprob() -> None:
    batch = batch_of([[Token(behaviour=-2.0), Token(behaviour=math.nan)]])
    adaptive = {"entropy_coefficient": 0.01, "entropy_target": 4.0}

    result = outcome(losses.build({"kind": "reinforce", "anchor": "behaviour"}), batch)
    bonus = outcome(losses.build({"kind": "reinforce", **adaptive}), batch)

    assert close(result.loss, -math.e / 2)
    assert close(result.metrics["ratio_mean"], math.e)
    assert close(result.metrics["kl_behaviour"], math.e - 1 - 1)
    assert close(bonus.metrics["entropy_coefficient"], 0.01 * (1 - 2.0 / 4.0))


@pytest.mark.parametrize(
    ("spec", "left"),
    [
        ({"kind": "reinforce"}, math.e - 2),
        ({"kind": "reinforce", "corrections": [{"kind": "tis", "cap": 2.0}]}, math.e - 2 - 2 + 2 * math.log(2)),
        ({"kind": "reinforce", "corrections": [{"kind": "tis", "cap": 9.0}]}, 0.0),
        ({"kind": "reinforce", "corrections": [{"kind": "icepop", "high": 2.0}]}, 0.0),
        ({"kind": "reinforce", "anchor": "behaviour"}, 0.0),
        ({"kind": "cispo", "clip_high": 0.5}, math.e - 1.5 - 1.5 + 1.5 * math.log(1.5)),
    ],
    ids=str,
)
@pytest.mark.parametrize("advantage", [1.0, -2.0, 0.0])
def test_losses_report_the_divergence_that_their_weights_leave(
    spec: dict[str, Any], left: float, advantage: float
) -> None:
    batch = batch_of([[Token(logprob=-1.0, behaviour=-2.0, advantage=advantage), Token(behaviour=math.nan)]])

    assert close(outcome(losses.build(spec), batch).metrics["kl_corrected"], left)


def test_a_loss_without_a_gain_gives_no_weight_to_scores() -> None:
    class Penalty(PolicyGradient[PolicyOptions]):
        def objective(self, tokens: PolicyTokens, state: Any) -> Objective:
            nothing = torch.zeros_like(tokens.advantages)
            return Objective(gain=nothing, is_clipped=nothing.bool(), penalty=tokens.logprobs.square())

    result = outcome(Penalty(PolicyOptions()), batch_of([[Token(logprob=-1.0, behaviour=-2.0)]]))

    assert close(result.loss, 1.0)
    assert result.metrics["kl_corrected"] == 0


def test_sapo_reports_the_slope_of_its_gate() -> None:
    gate = 1 / (1 + math.exp(-(math.e - 1)))

    result = outcome(losses.build({"kind": "sapo"}), batch_of([[Token(behaviour=-2.0), Token()]]))

    assert close(result.metrics["gate_slope"], 4 * gate * (1 - gate) + 1.0)


@pytest.mark.parametrize(("mode", "total"), [("truncate", 6.0), ("mask", 1.0)])
def test_decoupled_ppo_reports_its_weight_and_the_tokens_above_the_cap(mode: str, total: float) -> None:
    batch = batch_of([[Token(proximal=-1.0, behaviour=-3.0), Token()]])

    result = outcome(losses.build({"kind": "decoupled_ppo", "weight_mode": mode}), batch)

    assert result.metrics["decoupled_cut"] == 1
    assert close(result.metrics["decoupled_mean"], total)


@pytest.mark.parametrize("kind", ["ppo", "m2po"])
def test_tokens_beyond_the_dual_clip_are_counted(kind: str) -> None:
    batch = batch_of([[Token(behaviour=-3.0, advantage=-1.0), Token(behaviour=-1.5, advantage=-1.0)]])

    result = outcome(losses.build({"kind": kind, "dual_clip": 3.0}), batch)

    assert result.metrics["clip_fraction"] == 1
    assert result.logprob_grad.tolist()[0] == 0
    assert outcome(losses.build({"kind": kind}), batch).metrics["clip_fraction"] == 0


def test_sft_reports_the_negative_log_likelihood() -> None:
    result = outcome(losses.build({"kind": "sft"}), batch_of([[Token(logprob=-2.0), Token(logprob=-0.5)]]))

    assert close(result.metrics["nll"], 2.5)


def test_the_critic_reports_its_error_and_where_the_clip_raises_it() -> None:
    clipped_value, raised = Token(value=1.0, target=0.0), Token(value=1.0, target=1.0)

    result = outcome(losses.build({"kind": "critic"}), batch_of([[clipped_value, raised, Token(value=0.1)]]))

    assert close(result.metrics["value_error"], 1.0 + 0.0 + 0.01)
    assert result.metrics["value_clip_fraction"] == 1


def test_losses_declare_only_the_passes_that_they_read() -> None:
    assert losses.build({"kind": "ppo"}).needs == frozenset()
    assert losses.build({"kind": "ppo", "kl_coefficient": 0.1}).needs == {Pass.REFERENCE}
    assert losses.build({"kind": "reinforce", "anchor": "proximal"}).needs == {Pass.PROXIMAL}
    assert losses.build({"kind": "decoupled_ppo"}).needs == {Pass.PROXIMAL}
    assert losses.build({"kind": "m2po"}).needs == {Pass.CURRENT}
    assert losses.build({"kind": "dpo"}).needs == {Pass.CURRENT, Pass.REFERENCE}
    assert losses.build({"kind": "critic"}).needs == {Pass.VALUES}


def test_a_missing_pass_is_an_error() -> None:
    batch = batch_of([[Token()]])
    lacking = replace(batch, tokens=replace(batch.tokens, proximal_logprobs=None, values=None, returns=None))

    with raises_code(InvalidInput, "algorithm.pass_missing", "'proximal'"):
        outcome(losses.build({"kind": "decoupled_ppo"}), lacking)
    with raises_code(InvalidInput, "algorithm.critic_data_missing"):
        outcome(losses.build({"kind": "critic"}), lacking)


def test_an_empty_micro_batch_contributes_nothing() -> None:
    batch = batch_of([[Token(), Token()], []])
    for kind in losses.kinds():
        whole, divided = (
            outcome(losses.build({"kind": kind}), batch),
            outcome(losses.build({"kind": kind}), batch, [[[0]], [[1]]]),
        )
        assert close(divided.loss, whole.loss)
        assert_close(divided.logprob_grad, whole.logprob_grad)


def test_the_explained_variance_is_that_of_all_ranks() -> None:
    returns = torch.tensor([1.0, -2.0, 0.5, 3.0, 7.0])
    values = torch.tensor([0.5, -1.0, 0.0, 3.5, 6.0])
    expected = 1 - float((returns - values).var() / returns.var())

    token_rows = on_ranks(
        3,
        lambda rank, ranks: explained_variance(
            values[2 * rank : 2 * rank + 2], returns[2 * rank : 2 * rank + 2], ranks
        ),
    )

    assert token_rows == [pytest.approx(expected, rel=1e-6)] * 3
    assert math.isnan(explained_variance(values, torch.ones(5), SingleRank()))
    assert math.isnan(explained_variance(values[:0], returns[:0], SingleRank()))
