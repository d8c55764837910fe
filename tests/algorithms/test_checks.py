"""Combinations that cannot work are refused with a stable code; those that can are accepted."""

from typing import Any

import pytest

from astraflow.algorithms.checks import check_algorithm, check_temperatures
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.losses import losses
from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code


def config(loss: dict[str, Any], **options: Any) -> AlgorithmConfig:
    return AlgorithmConfig.parse({"loss": loss, **options}, where="algorithm")


def with_correction(loss: str, correction: str, **options: Any) -> AlgorithmConfig:
    return config({"kind": loss, "corrections": [{"kind": correction}], **options})


GAE = {"advantages": [], "token_advantages": [{"kind": "gae"}]}
DISTILLATION = {"token_advantages": [{"kind": "distillation"}]}
ENDPOINT: dict[str, Any] = {"large": {"endpoint": {"base_url": "http://teacher:8000", "model": "large"}}}
OWN: dict[str, Any] = {"small": {"model": {"kind": "tiny"}}}
TWO = [{"kind": "tis"}, {"kind": "icepop"}]
REFUSED: list[tuple[str, AlgorithmConfig]] = [
    ("algorithm.critic_as_policy", config({"kind": "critic"})),
    ("algorithm.pairs_divided", config({"kind": "dpo"}, minibatches=2)),
    ("algorithm.token_correction", with_correction("gspo", "tis")),
    ("algorithm.token_correction", with_correction("gspo", "icepop")),
    ("algorithm.ratio_counted_twice", with_correction("decoupled_ppo", "tis")),
    ("algorithm.ratio_in_anchor", with_correction("ppo", "tis")),
    ("algorithm.ratio_in_anchor", with_correction("m2po", "mis")),
    ("algorithm.ratio_in_anchor", with_correction("dppo", "icepop")),
    ("algorithm.two_weights", config({"kind": "reinforce", "corrections": TWO})),
    ("algorithm.unused_token_advantages", config({"kind": "sft"}, **GAE, critic={})),
    ("algorithm.unused_token_advantages", config({"kind": "dpo"}, token_advantages=[{"kind": "whitened"}])),
    ("algorithm.gae_not_first", config({"kind": "ppo"}, token_advantages=[{"kind": "whitened"}, {"kind": "gae"}])),
    (
        "algorithm.turn_returns_not_first",
        config({"kind": "ppo"}, advantages=[], token_advantages=[{"kind": "whitened"}, {"kind": "turn_returns"}]),
    ),
    ("algorithm.turn_returns_of_advantages", config({"kind": "ppo"}, token_advantages=[{"kind": "turn_returns"}])),
    ("algorithm.critic_and_gae", config({"kind": "ppo"}, **GAE)),
    ("algorithm.critic_and_gae", config({"kind": "ppo"}, critic={})),
    ("algorithm.teacher_and_distillation", config({"kind": "ppo"}, **DISTILLATION)),
    ("algorithm.teacher_and_distillation", config({"kind": "distillation"})),
    ("algorithm.teacher_and_distillation", config({"kind": "ppo", "teacher_coefficient": 0.1})),
    ("algorithm.teacher_and_distillation", config({"kind": "ppo"}, teachers=OWN)),
    ("algorithm.teacher_and_distillation", config({"kind": "ppo"}, teachers=ENDPOINT)),
    (
        "algorithm.teacher_not_chosen",
        config({"kind": "ppo"}, teachers={**OWN, **ENDPOINT}, **DISTILLATION),
    ),
    (
        "algorithm.teacher_temperature",
        config({"kind": "ppo"}, teachers=ENDPOINT, temperature=0.7, **DISTILLATION),
    ),
    ("algorithm.anchor_of_each_minibatch", config({"kind": "ppo", "anchor": "current"}, minibatches=2)),
    ("algorithm.anchor_of_each_minibatch", config({"kind": "gspo", "anchor": "current"}, minibatches=4)),
    (
        "algorithm.penalty_not_first",
        config(
            {"kind": "ppo"}, advantages=[{"kind": "group_relative"}, {"kind": "overlong_penalty", "max_tokens": 9000}]
        ),
    ),
    (
        "algorithm.unused_before_distillation",
        config(
            {"kind": "ppo"},
            advantages=[],
            token_advantages=[{"kind": "gae"}, {"kind": "distillation"}],
            critic={},
            teachers=OWN,
        ),
    ),
    ("config.invalid", config({"kind": "ppo", "kl_unbiased": True})),
    ("config.invalid", config({"kind": "cispo", "dual_clip": 3.0})),
    ("config.invalid", config({"kind": "dpo", "corrections": [{"kind": "tis"}]})),
    ("config.invalid", config({"kind": "decoupled_ppo", "anchor": "behaviour"})),
    ("config.invalid", config({"kind": "ppo", "aggregation": "fixed_length"})),
    ("config.invalid", config({"kind": "ppo", "aggregation": "sequence_mean", "fixed_length": 9})),
    ("config.invalid", config({"kind": "ppo", "entropy_target": 0.2})),
    ("algorithm.two_baselines", config({"kind": "ppo"}, critic={}, token_advantages=GAE["token_advantages"])),
    ("algorithm.policy_loss_of_critic", config({"kind": "ppo"}, critic={"loss": {"kind": "sft"}}, **GAE)),
    ("config.invalid", config({"kind": "ppo"}, critic={"loss": {"kind": "critic", "clip": 1}}, **GAE)),
    ("config.invalid", config({"kind": "ppo"}, token_advantages=[{"kind": "whitened", "eps": 1}])),
    ("plugin.unknown_kind", config({"kind": "ppo"}, token_advantages=[{"kind": "whiten"}])),
    ("plugin.unknown_kind", with_correction("ppo", "truncated")),
]


@pytest.mark.parametrize(("code", "algorithm"), REFUSED, ids=[f"{n}-{code}" for n, (code, _) in enumerate(REFUSED)])
def test_an_invalid_combination_is_refused(code: str, algorithm: AlgorithmConfig) -> None:
    with raises_code(InvalidInput, code):
        check_algorithm(algorithm)


@pytest.mark.parametrize(
    "algorithm",
    [
        *(config({"kind": kind}) for kind in losses.kinds() if kind not in ("critic", "distillation")),
        with_correction("ppo", "opsm"),
        with_correction("ppo", "tis", anchor="current"),
        with_correction("gspo", "mis"),
        config({"kind": "gspo", "corrections": [{"kind": "tis", "level": "sequence"}, {"kind": "opsm"}]}),
        config(
            {"kind": "ppo", "dual_clip": 3.0},
            advantages=[{"kind": "overlong_penalty", "max_tokens": 64}],
            token_advantages=[{"kind": "gae"}, {"kind": "whitened"}],
            critic={"warmup_steps": 5},
        ),
        config({"kind": "reinforce"}, teachers=OWN, **DISTILLATION),
        config({"kind": "distillation"}, teachers={"self": {"policy": "current"}}),
        config({"kind": "ppo", "teacher_coefficient": 0.1}, teachers={**OWN, **ENDPOINT}, teacher_field="part"),
        config({"kind": "reinforce"}, teachers=ENDPOINT, **DISTILLATION),
        config(
            {"kind": "reinforce"},
            teachers=OWN,
            token_advantages=[{"kind": "whitened"}, {"kind": "distillation", "reward_coefficient": 0.5}],
        ),
    ],
    ids=str,
)
def test_a_valid_combination_is_accepted(algorithm: AlgorithmConfig) -> None:
    check_algorithm(algorithm)


def test_a_flow_at_another_temperature_is_refused() -> None:
    with raises_code(InvalidInput, "algorithm.temperature", "'train'", "0.7"):
        check_temperatures(AlgorithmConfig(), {"other": 1.0, "train": 0.7})
    check_temperatures(AlgorithmConfig(temperature=0.7), {"train": 0.7})
