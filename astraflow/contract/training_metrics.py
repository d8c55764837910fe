"""Metrics that trainers report for each step: names, units and meaning.

A trainer may report other metrics too; `training_metric` puts them into the group `OTHER`.
"""

import re
from dataclasses import dataclass
from enum import Enum

from astraflow.contract.rollouts.spans import Ending

ENDING_PREFIX = "ending_"
"""Prefix of the names of the shares of endings."""

REWARD_TERM_PREFIX = "reward_term_"
"""Prefix of the names of the means of reward terms."""

DROPPED_ROWS = "dropped_rows"
"""Name of the number of rows that a trainer dropped."""

DROPPED_PREFIX = "dropped_"
"""Prefix of the names of the numbers of bad rows, followed by the limit that they break."""

ROLLOUT_REWARD = "reward_rollouts"
"""Name of the mean reward of the rollouts that arrived between two steps."""

MAX_REWARD_TERMS = 16
"""Maximum number of counted reward terms per flow and per policy."""


class MetricUnit(Enum):
    """Unit of a metric, as shown beside its values."""

    NUMBER = ""
    """No unit."""
    SHARE = "share"
    """Fraction between 0 and 1; shown as per cent."""
    NATS = "nats"
    TOKENS = "tokens"
    TOKENS_PER_S = "tokens/s"
    FLOPS = "FLOP/s"
    VERSIONS = "versions"
    SECONDS = "s"


class MetricGroup(Enum):
    """Group in which a metric is shown; in this order."""

    LEARNING = "Learning"
    MISMATCH = "Mismatch of engine and trainer"
    ENDINGS = "Endings"
    """Shares of the endings of interactions; they add up to 1."""
    REWARD_TERMS = "Reward terms"
    DATA = "Data"
    SPEED = "Speed"
    TIME = "Time"
    SYSTEM = "System"
    """Processor, memory and GPUs of the trainer."""
    ALGORITHM = "Algorithm"
    """Metrics that only some algorithms report."""
    OTHER = "Other"
    """Metrics that are not described here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMetric:
    """Description of one metric in `StepReport.metrics`."""

    name: str
    label: str
    """Display name, without the unit."""
    unit: MetricUnit
    group: MetricGroup
    description: str
    """One sentence."""


def _metrics(group: MetricGroup, *rows: tuple[str, str, MetricUnit, str]) -> tuple[TrainingMetric, ...]:
    return tuple(
        TrainingMetric(name=name, label=label, unit=unit, group=group, description=description)
        for name, label, unit, description in rows
    )


(_NUMBER, _SHARE, _NATS, _TOKENS, _TOKENS_PER_S, _FLOPS, _VERSIONS, _SECONDS) = MetricUnit

TRAINING_METRICS: tuple[TrainingMetric, ...] = (
    *_metrics(
        MetricGroup.LEARNING,
        (ROLLOUT_REWARD, "Reward of rollouts", _NUMBER,
         "Mean reward of the rollouts that arrived between the previous step and this step, before any filter."),
        ("reward_mean", "Reward of the batch", _NUMBER,
         "Mean reward of the trained trajectories; filters drop groups whose answers are all equally good, or bad."),
        ("signal_fraction", "Tokens that change the policy", _SHARE,
         "Share of trained tokens whose advantage is not zero; the others have no gradient but that of penalties."),
        ("loss", "Loss", _NUMBER, "Loss of the batch, as the algorithm defines it."),
        ("grad_norm", "Gradient norm", _NUMBER,
         "Norm of the whole gradient before it is clipped, mean over the step's optimizer updates."),
        ("balance_loss", "Balance of experts", _NUMBER,
         "Auxiliary loss of a mixture of experts; the number of experts of a token when all are used evenly."),
        ("changed_experts", "Changed experts", _SHARE,
         "Share of the replayed expert choices that the trainer's own routers would have made otherwise: without "
         "replay these tokens would be computed by other experts than those that sampled."),
        ("learning_rate", "Learning rate", _NUMBER, "Learning rate of the last optimizer update."),
        ("updates", "Optimizer updates", _NUMBER, "Number of optimizer updates of the step."),
        ("skipped", "Skipped updates", _NUMBER,
         "Number of updates that were skipped because loss or gradient was not finite."),
        ("entropy", "Entropy", _NATS, "Mean entropy of the policy's distribution at the trained tokens."),
        ("clip_fraction", "Clipped tokens", _SHARE, "Share of trained tokens whose ratio the loss clips or masks."),
        ("ratio_mean", "Policy ratio", _NUMBER,
         "Mean ratio of the current policy to the policy that the loss is anchored to."),
        ("kl_reference", "KL to the reference", _NATS,
         "Mean estimated divergence of the policy from the reference policy, for each token."),
        ("kl_behaviour", "KL to the rollout policy", _NATS,
         "Mean estimated divergence of the policy from the policy that generated the tokens (k3): mismatch and "
         "age."),
    ),
    *_metrics(
        MetricGroup.MISMATCH,
        ("mismatch_k3", "Divergence", _NATS,
         "Mean k3 divergence between trainer and engine over rows of the trainer's own version; 0 without "
         "mismatch."),
        ("mismatch_js", "Jensen-Shannon divergence", _NATS,
         "Estimated Jensen-Shannon divergence of trainer and engine over the same rows; between 0 and 0.69."),
        ("mismatch_factor", "Probability factor", _NUMBER,
         "Mean factor by which the probabilities of trainer and engine differ over the same rows; 1 without "
         "mismatch."),
        ("mismatch_max", "Largest mismatch", _NATS,
         "Largest difference between the log-probabilities of trainer and engine over the same rows."),
        ("mismatch_sample_size", "Effective sample size", _SHARE,
         "Share of the samples that remains effective after importance weighting; 100% without mismatch."),
        ("mismatch_cut", "Tokens far off", _SHARE,
         "Share of tokens with a ratio of trainer to engine outside 0.5 to 5, which IcePop cuts by default."),
        ("mismatch_mass", "Probability of what is sampled", _NUMBER,
         "Mean ratio of trainer to engine: the probability that the trainer gives to what engines sample from; 1 "
         "unless they filter, up to the error of the mean."),
        ("mismatch_one_sided", "One-sided mismatch", _NUMBER,
         "What that probability lacks to 1, relative to the mean distance of the ratios from 1: about 0 for "
         "rounding, 1 where engines filter what they sample."),
        ("mismatch_of_bound", "Divergence against its bound", _NUMBER,
         "Divergence relative to `max_mismatch`; above 1 for `max_mismatch_steps` steps, training stops."),
        ("kl_corrected", "Divergence after corrections", _NATS,
         "What is left of the KL to the rollout policy with the weights that the loss gives to tokens: all of it "
         "without weights, nothing with the whole ratio or for tokens that are cut."),
        ("missing_logprobs", "Missing log-probabilities", _SHARE,
         "Share of trained tokens that are dropped because the engine recorded no finite log-probability."),
        ("kept_tokens", "Kept tokens", _TOKENS,
         "Mean number of tokens that could be sampled in place of a filtered one, over which the trainer "
         "renormalises."),
        ("head_mass", "Recorded probability", _SHARE,
         "Mean probability, under the engine, of the most likely tokens that it recorded for score centering."),
        ("outside_head", "Tokens outside the recorded", _SHARE,
         "Share of trained tokens that are not among the most likely tokens that the engine recorded, or for which "
         "it recorded none."),
        ("centering_share", "Centering against policy term", _SHARE,
         "Sum of the magnitudes of the weights that centering subtracts, as a share of those of the sampled "
         "tokens; 0 where engine and trainer agree."),
        ("centering_size", "Centering", _NUMBER, "Mean sum of the magnitudes of the weights that centering subtracts."),
        ("policy_size", "Policy term", _NUMBER,
         "Mean magnitude of the weight of a sampled token's score, beside which centering is small."),
        ("kl_teacher", "Divergence from the teacher", _NATS,
         "Mean divergence of the policy from its teacher over the teacher's most likely tokens."),
        ("teacher_head_mass", "Teacher's probability", _SHARE,
         "Mean probability, under the teacher, of its most likely tokens that the loss reads."),
        ("teacher_missing", "Without a teacher", _SHARE,
         "Share of trained tokens that no teacher scored; they count for nothing in a distillation."),
    ),
    *_metrics(
        MetricGroup.ENDINGS,
        *(
            (
                f"{ENDING_PREFIX}{ending.value}",
                f"Ending: {ending.label}",
                MetricUnit.SHARE,
                f"Share of the ending `{ending.value}` among the rollouts with an ending since the previous step.",
            )
            for ending in Ending
        ),
    ),
    *_metrics(
        MetricGroup.DATA,
        ("tokens_mean", "Length of answers", _TOKENS, "Mean number of generated tokens per trajectory."),
        ("truncated_fraction", "Truncated answers", _SHARE, "Share of trajectories that ended at a length limit."),
        ("staleness_mean", "Staleness", _VERSIONS,
         "Mean number of versions between the oldest version that wrote a trajectory and the trained version."),
        ("staleness_max", "Largest staleness", _VERSIONS,
         "Largest number of versions between the oldest version that wrote a trajectory and the trained version."),
        ("groups", "Groups of the batch", _NUMBER, "Number of groups in the batch."),
        ("tokens", "Tokens of the batch", _TOKENS, "Tokens of all trajectories of the batch, with prompts."),
        ("trained_tokens", "Trained tokens", _TOKENS,
         "Tokens of the batch that have a loss: generated, and not masked."),
        ("distinct_tokens", "Distinct tokens", _TOKENS,
         "Input tokens of a step, where a beginning that several trajectories of a group share counts once."),
        ("computed_tokens", "Positions computed", _TOKENS,
         "Tokens that the step computes, padding included: above the distinct ones where sharing costs too much."),
        (DROPPED_ROWS, "Dropped trajectories", _NUMBER,
         "Number of trajectories that the trainer left out, because they or another one of their task were bad."),
        *(
            (f"{DROPPED_PREFIX}{limit}", f"Dropped: {label}", MetricUnit.NUMBER, f"Number of trajectories {cause}.")
            for limit, label, cause in (
                ("token_id", "token ids", "with a token id beyond the model's vocabulary"),
                ("experts", "experts", "with experts that the model does not have"),
                ("tokens", "length", "with more tokens than the model has positions"),
                ("no_context", "no context", "whose first token is model-written"),
                ("logprob", "logprobs", "with a logprob that no sampled token can have"),
                ("version", "versions", "with tokens of a version that does not exist yet"),
                ("reward", "rewards", "with a reward that is not a finite number"),
                ("teacher", "teacher", "whose teacher is none of the algorithm's"),
                ("teacher_prompt", "teacher's prompt", "without a prompt that their teacher can read"),
                ("mismatch", "mismatch", "of nodes whose logprobs differ from the trainer's"),
            )
        ),
    ),
    *_metrics(
        MetricGroup.SPEED,
        ("tokens_per_s", "Served tokens", _TOKENS_PER_S,
         "Tokens of whole trajectories per second of the step; shared ones count for each trajectory."),
        ("computed_tokens_per_s", "Computed tokens", _TOKENS_PER_S,
         "Positions computed per second of the step; what trajectories of a group share counts once."),
        ("mfu", "MFU", _SHARE,
         "Model FLOPs utilization: needed floating-point operations per second over the peak of the devices."),
        ("flops_per_s", "Needed operations", _FLOPS,
         "Floating-point operations per second of the step that the passes need, over all devices."),
        ("padding_fraction", "Padding", _SHARE, "Share of the computed positions that hold no token."),
        ("imbalance", "Imbalance of ranks", _NUMBER,
         "Operations of the busiest rank over the mean of all ranks; 1 when all have the same work."),
    ),
    *_metrics(
        MetricGroup.TIME,
        ("wait_s", "Waiting for a batch", _SECONDS, "Time before the step without a batch to train."),
        ("compute_s", "Computing", _SECONDS, "Time of the step without waiting and publishing."),
        ("pass_s", "Passes without gradient", _SECONDS,
         "Time of the passes that the loss needs before training: proximal, reference, values, teacher."),
        ("teacher_s", "Asking teachers' servers", _SECONDS,
         "Time of the requests to the servers of teachers, before the passes. Absent without a server."),
        ("forward_backward_s", "Forward and backward", _SECONDS,
         "Time of the passes with gradient over all micro-batches."),
        ("attention_s", "Attention", _SECONDS,
         "Time of attention in all layers, forward and backward; part of the passes and of forward and backward."),
        ("head_s", "Output head", _SECONDS,
         "Time of the output head, forward and backward; part of the passes and of forward and backward."),
        ("optimizer_s", "Optimizer", _SECONDS, "Time of clipping and of the optimizer updates."),
        ("publish_s", "Publishing", _SECONDS, "Time for which publishing blocked the step."),
        ("publish_wait_s", "Wait for last publish", _SECONDS, "Time until the previous version was in the store."),
        ("publish_copy_s", "Copying weights", _SECONDS, "Time of copying the weights off the device for publishing."),
        ("publish_probe_s", "Probe", _SECONDS,
         "Time of scoring the probe with which nodes verify the published weights."),
        ("checkpoint_s", "Checkpoint", _SECONDS,
         "Time for which the checkpoint blocked the step: copying the state off the device."),
        ("checkpoint_write_s", "Writing the checkpoint", _SECONDS,
         "Time until the checkpoint was durable, while the next step computed."),
        ("checkpoint_bytes", "Size of the checkpoint, bytes", _NUMBER, "Size of the checkpoint's files. Bytes."),
    ),
    *_metrics(
        MetricGroup.SYSTEM,
        ("process_cpu", "Processor", _SHARE,
         "Share of the machine's cores that the processes of the trainer used in the latest seconds."),
        ("process_memory", "Memory, bytes", _NUMBER, "Resident memory of the processes of the trainer. Bytes."),
        ("gpu_utilization", "GPU utilization", _SHARE,
         "Share of the time in which the trainer's GPUs compute, their mean. Absent without a GPU driver."),
        ("gpu_memory", "GPU memory, bytes", _NUMBER,
         "Used memory of the trainer's GPUs, their sum. Bytes. Absent without a GPU driver."),
    ),
    *_metrics(
        MetricGroup.ALGORITHM,
        ("entropy_coefficient", "Entropy coefficient", _NUMBER,
         "Weight of the entropy bonus, when it adapts to a target."),
        ("sequence_ratio_mean", "Sequence ratio", _NUMBER,
         "Mean ratio of the current policy to the anchor over whole sequences, geometric mean of the tokens "
         "(GSPO)."),
        ("nll", "Negative log-likelihood", _NATS, "Mean negative log-likelihood of trained tokens (SFT)."),
        ("dpo_accuracy", "Preferred answers", _SHARE,
         "Share of pairs whose chosen trajectory has the higher implied reward (DPO)."),
        ("dpo_margin", "Reward margin", _NUMBER,
         "Mean difference of the implied rewards of the chosen and the rejected trajectory (DPO)."),
        ("m2po_ratio_low", "Lower ratio limit", _NUMBER,
         "Lower end of the range of ratios that M2PO solved for this step."),
        ("m2po_ratio_high", "Upper ratio limit", _NUMBER,
         "Upper end of the range of ratios that M2PO solved for this step."),
        ("m2po_second_moment", "Second moment", _NUMBER,
         "Mean squared log ratio of the tokens that leave the trust region, before they are clipped (M2PO)."),
        ("drift", "Drift", _NUMBER,
         "Mean squared difference of the log-probabilities of trainer and engine, which DPPO penalizes."),
        ("gate_slope", "Slope of the gate", _NUMBER,
         "Mean factor by which SAPO scales the gradient of a token; 1 on policy."),
        ("value_loss", "Value loss", _NUMBER, "Loss of the critic, mean over the step's optimizer updates."),
        ("value_explained_variance", "Explained variance", _NUMBER,
         "Share of the variance of the returns that the critic's values explain, before its updates; 1 is perfect, "
         "0 or less is no better than a constant."),
        ("value_error", "Value error", _NUMBER, "Mean squared error of the critic's values."),
        ("value_clip_fraction", "Clipped values", _SHARE,
         "Share of tokens at which the critic's loss clips the change of the value."),
        ("critic_grad_norm", "Gradient norm of the critic", _NUMBER,
         "Norm of the critic's whole gradient before it is clipped, mean over the step's optimizer updates."),
    ),
)  # fmt: skip
"""Described metrics, in the order in which they are shown."""

_BY_NAME = {metric.name: metric for metric in TRAINING_METRICS}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_ROLE_PREFIX = "reward_mean_"
"""Prefix of the names of mean rewards by role, in workflows with several roles."""
_TERM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TRANSFER_PREFIX = "published_"
"""Prefix of the names of `VersionReport.metrics`, which describe a version, not a step."""


def training_metric(name: str) -> TrainingMetric | None:
    """Returns the description of a reported metric; None if it is not a metric of a step or its name is not valid.

    >>> training_metric("entropy").label, training_metric("my_loss").label, training_metric("published_version")
    ('Entropy', 'my_loss', None)
    >>> training_metric("reward_term_format").label
    'Term: format'
    """
    described = _BY_NAME.get(name)
    term = name.removeprefix(REWARD_TERM_PREFIX)
    if term != name and _TERM_NAME.fullmatch(term):
        return TrainingMetric(
            name=name,
            label=f"Term: {term}",
            unit=MetricUnit.NUMBER,
            group=MetricGroup.REWARD_TERMS,
            description=f"Mean of the reward term `{term}` over the rollouts since the previous step.",
        )
    if described is not None or name.startswith(_TRANSFER_PREFIX) or not _NAME.fullmatch(name):
        return described
    if name.startswith(_ROLE_PREFIX):
        return TrainingMetric(
            name=name,
            label=f"Reward of {name.removeprefix(_ROLE_PREFIX)}",
            unit=MetricUnit.NUMBER,
            group=MetricGroup.LEARNING,
            description="Mean reward of the trained trajectories of one role.",
        )
    return TrainingMetric(
        name=name, label=name, unit=MetricUnit.NUMBER, group=MetricGroup.OTHER, description="Reported by the trainer."
    )
