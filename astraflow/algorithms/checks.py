"""Combinations of an algorithm that cannot work, refused before a run starts, each with its remedy."""

from collections.abc import Mapping, Sequence

from astraflow.algorithms.base import token_advantages
from astraflow.algorithms.config import AlgorithmConfig, CriticConfig
from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.losses import WITHOUT_RECORDED_LOGPROBS, losses
from astraflow.algorithms.losses.options import PolicyOptions
from astraflow.algorithms.tokens import Pass
from astraflow.contract.errors import InvalidInput

GROUP_ADVANTAGES = ("group_centred", "group_relative", "leave_one_out", "maxrl")
"""Advantages that compare the rewards of a group."""
_RELATIVE_ADVANTAGES = ("batch_whitened", *GROUP_ADVANTAGES)


def check_algorithm(config: AlgorithmConfig) -> None:
    """Checks the loss, its corrections, the token advantages, and what they need of each other.

    Builds every correction and token advantage, so imports torch. Raises: InvalidInput with a code for each cause.
    """
    options = losses.check(config.loss)
    _check_loss(config)
    if isinstance(options, PolicyOptions):
        _check_corrections(options, str(config.loss["kind"]))
        _check_anchor(options, config)
    _check_advantages(config)
    _check_token_advantages(config)
    is_distilled = any(spec.get("kind") == "distillation" for spec in config.token_advantages)
    _check_teachers(config, are_needed=is_distilled or teacher_tokens(config) > 0)


def check_temperatures(config: AlgorithmConfig, temperatures: Mapping[str, float]) -> None:
    """Checks that logprobs are computed at the temperature of the samples.

    temperatures: sampling temperature of each flow that feeds the policy. Raises: InvalidInput with the code
    `algorithm.temperature`.
    """
    for flow, temperature in temperatures.items():
        if temperature != config.temperature:
            raise InvalidInput(
                f"cannot train on flow {flow!r}: it samples at temperature {temperature}, the algorithm computes "
                f"logprobs at {config.temperature}; set algorithm.temperature = {temperature}",
                code="algorithm.temperature",
            )


def teacher_tokens(config: AlgorithmConfig) -> int:
    """Returns the number of the teacher's most likely tokens that the loss reads; 0: none."""
    options = losses.check(config.loss)
    return options.teacher_tokens if isinstance(options, PolicyOptions) and options.teacher_coefficient > 0 else 0


def check_roles(config: AlgorithmConfig, flow: str, roles: Sequence[str]) -> None:
    """Checks that a policy which plays several roles of a flow compares trajectories of one role only.

    Raises: InvalidInput with the code `algorithm.roles_mixed`.
    """
    compared = [spec for spec in config.advantages if spec.get("kind") in GROUP_ADVANTAGES]
    compared += [
        spec
        for spec in config.token_advantages
        if spec.get("kind") == "turn_returns" and spec.get("baseline") != "none"
    ]
    mixed = [spec for spec in compared if not spec.get("per_slot")]
    if len(roles) > 1 and mixed:
        raise InvalidInput(
            f"cannot train on flow {flow!r}: the policy plays the roles {', '.join(roles)}, and {mixed[0]['kind']!r} "
            "compares their rewards, which have different levels; set per_slot = true",
            code="algorithm.roles_mixed",
        )


def _check_loss(config: AlgorithmConfig) -> None:
    kind = config.loss["kind"]
    if kind == "critic":
        raise InvalidInput(
            "cannot train a policy with the loss 'critic': it is the loss of a critic's values; set critic = {} and "
            "use a policy loss such as 'ppo'",
            code="algorithm.critic_as_policy",
        )
    if kind == "dpo" and config.minibatches > 1:
        raise InvalidInput(
            f"cannot use the loss 'dpo' with {config.minibatches} minibatches: they would separate the rows of a pair; "
            "set minibatches = 1",
            code="algorithm.pairs_divided",
        )


def _check_anchor(options: PolicyOptions, config: AlgorithmConfig) -> None:
    if getattr(options, "anchor", None) == "current" and config.minibatches > 1:
        raise InvalidInput(
            f"cannot use the anchor 'current' with {config.minibatches} minibatches: the ratio is 1 in each, so the "
            "loss does not notice that earlier ones changed the weights; use the anchor 'proximal' or 'behaviour', or "
            "set minibatches = 1",
            code="algorithm.anchor_of_each_minibatch",
        )


def _check_advantages(config: AlgorithmConfig) -> None:
    kinds = [str(spec["kind"]) for spec in config.advantages]
    before = kinds[: kinds.index("overlong_penalty")] if "overlong_penalty" in kinds else []
    if relative := [kind for kind in before if kind in _RELATIVE_ADVANTAGES]:
        raise InvalidInput(
            f"cannot use the advantage 'overlong_penalty' after {relative[0]!r}: it changes the reward; put it first",
            code="algorithm.penalty_not_first",
        )


def _check_corrections(options: PolicyOptions, loss: str) -> None:
    built = [(str(spec["kind"]), corrections.build(spec)) for spec in options.corrections]
    weights = [kind for kind, correction in built if correction.is_weight]
    if options.has_sequence_ratio and (kinds := [kind for kind, correction in built if correction.level == "token"]):
        raise InvalidInput(
            f"cannot use the correction {kinds[0]!r} with the loss {loss!r}: it changes single tokens, the loss has "
            "one ratio for each trajectory; use 'mis', 'geometric_mask', 'opsm', or 'tis' with level = 'sequence'",
            code="algorithm.token_correction",
        )
    if weights and options.has_own_weight:
        raise InvalidInput(
            f"cannot use the correction {weights[0]!r} with the loss {loss!r}: the loss weights by the same ratio "
            "already; remove the correction and set weight_cap of the loss",
            code="algorithm.ratio_counted_twice",
        )
    if weights and options.ratio_anchor == "behaviour":
        raise InvalidInput(
            f"cannot use the correction {weights[0]!r} with the loss {loss!r}: its ratio to the behaviour policy "
            "contains the mismatch already; use a loss with the anchor 'proximal' or 'current', or a mask: "
            "'geometric_mask' or 'opsm'",
            code="algorithm.ratio_in_anchor",
        )
    if len(weights) > 1:
        raise InvalidInput(
            f"cannot use the corrections {' and '.join(map(repr, weights))} together: both weight by the same ratio; "
            "keep one",
            code="algorithm.two_weights",
        )


def _check_token_advantages(config: AlgorithmConfig) -> None:
    kinds = [str(spec.get("kind")) for spec in config.token_advantages]
    for spec in config.token_advantages:
        token_advantages.check(spec)
    loss = config.loss["kind"]
    if kinds and loss in WITHOUT_RECORDED_LOGPROBS:
        raise InvalidInput(
            f"cannot use token_advantages with the loss {loss!r}: it does not read them; remove token_advantages",
            code="algorithm.unused_token_advantages",
        )
    if "gae" in kinds[1:]:
        raise InvalidInput(
            f"cannot use the token advantage 'gae' after {kinds[0]!r}: it expects rewards; put it first",
            code="algorithm.gae_not_first",
        )
    if "turn_returns" in kinds:
        _check_turn_returns(config, kinds)
    if "distillation" in kinds[1:]:
        _check_distillation(config.token_advantages[kinds.index("distillation")], kinds[0])
    if ("gae" in kinds) != (config.critic is not None):
        raise InvalidInput(
            "cannot use the token advantage 'gae' without a critic, or a critic without 'gae'; set critic = {} and "
            "begin token_advantages with {kind = 'gae'}, or remove both",
            code="algorithm.critic_and_gae",
        )
    if config.critic is not None:
        _check_critic(config, config.critic)


def _check_distillation(spec: Mapping[str, object], first: str) -> None:
    if not spec.get("reward_coefficient"):
        raise InvalidInput(
            f"cannot use the token advantage 'distillation' after {first!r}: without reward_coefficient only the "
            f"teacher counts, so the result of {first!r} would be discarded; set reward_coefficient of 'distillation', "
            f"or remove {first!r}",
            code="algorithm.unused_before_distillation",
        )


def _check_teachers(config: AlgorithmConfig, *, are_needed: bool) -> None:
    if are_needed != bool(config.teachers):
        raise InvalidInput(
            "cannot distil without a teacher, or use a teacher that nothing reads; set teachers, and either the token "
            "advantage {kind = 'distillation'}, the loss 'distillation' or teacher_coefficient of another loss, or "
            "remove them",
            code="algorithm.teacher_and_distillation",
        )
    if len(config.teachers) > 1 and not config.teacher_field:
        raise InvalidInput(
            f"cannot choose between the teachers {', '.join(config.teachers)}: set teacher_field to the field of the "
            "prompts with the name of their teacher",
            code="algorithm.teacher_not_chosen",
        )
    for name, teacher in config.teachers.items():
        if teacher.endpoint is not None and config.temperature != 1:
            raise InvalidInput(
                f"cannot compare the teacher {name!r} at {teacher.endpoint.base_url!r} with a policy at temperature "
                f"{config.temperature}: servers score at temperature 1; set temperature = 1, or load its model",
                code="algorithm.teacher_temperature",
            )


def _check_turn_returns(config: AlgorithmConfig, kinds: Sequence[str]) -> None:
    if kinds.index("turn_returns") or kinds.count("turn_returns") > 1:
        raise InvalidInput(
            f"cannot use the token advantage 'turn_returns' after {kinds[0]!r}: it expects rewards; put it first",
            code="algorithm.turn_returns_not_first",
        )
    if relative := _relative_advantages(config):
        raise InvalidInput(
            f"cannot use the advantage {relative[0]!r} with the token advantage 'turn_returns': it has a baseline of "
            "its own, and divides rewards over turns; set advantages = []",
            code="algorithm.turn_returns_of_advantages",
        )


def _relative_advantages(config: AlgorithmConfig) -> list[str]:
    return [kind for spec in config.advantages if (kind := str(spec["kind"])) in _RELATIVE_ADVANTAGES]


def _check_critic(config: AlgorithmConfig, critic: CriticConfig) -> None:
    losses.check(critic.loss)
    if Pass.VALUES not in losses.build(critic.loss).needs:
        raise InvalidInput(
            f"cannot train a critic with the loss {critic.loss['kind']!r}: it is not a loss of values; remove "
            "critic.loss, or use 'critic'",
            code="algorithm.policy_loss_of_critic",
        )
    if relative := _relative_advantages(config):
        raise InvalidInput(
            f"cannot use the advantage {relative[0]!r} with a critic: the critic is the baseline, and it predicts "
            "rewards, not what other trajectories of the batch make of them; set advantages = []",
            code="algorithm.two_baselines",
        )
