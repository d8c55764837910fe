"""Faults of learning: what is wrong with how a policy learns, the evidence, the threshold, and what to do.

A `Diagnosis` says what limits the speed of a run; faults say whether what it learns is worth having. They are found by
`astraflow.learning` and reported as records of the kind `learning_fault`, whose cause is the code of the fault; pages,
commands, alerts and the maintainer show these records, and none judges the figures again.
"""

from dataclasses import KW_ONLY, dataclass

from astraflow.contract.record_kinds import FactEnum, Severity

_INFO, _WARNING, _CRITICAL = Severity

STEP = "step"
"""Value of a record: the step at which the fault was found first."""


@dataclass(frozen=True, slots=True)
class _Facts:
    code: str
    severity: Severity
    headline: str
    _: KW_ONLY
    evidence: str
    """Template of what was measured."""
    threshold: str
    """From which value it is a finding, and why from there."""
    remedy: str
    """Template of the setting or command that mends it."""


_SPREAD = (
    "from {limit:.0%} of the groups without a spread of rewards: only groups with a spread have advantages, so the "
    "rest "
    "of the compute trains nothing"
)
_FELL = "from a fall of a fifth of the range of rewards, beyond the noise of ten steps: what was learned is being lost"
_RATE = "lower `learning_rate`, or continue from an earlier step"


class LearningFault(FactEnum):
    """Faults of learning, by what they concern: groups and rewards, the policy, its answers, prompts, tools."""

    REWARD_CONSTANT = _Facts(
        "reward_constant",
        _CRITICAL,
        "Every rollout gets the same reward",
        evidence="all of the latest {rollouts:rollout} have the reward {reward:.3g}",
        threshold="from {limit:.0f} rollouts without any difference: without one, nothing can be learned",
        remedy="look at the answers and at the reward: `astraflow trajectories`; a reward that never differs is "
        "broken, "
        "or its prompts are all too hard or all solved",
    )
    GROUPS_FAILED = _Facts(
        "groups_failed",
        _WARNING,
        "Most groups fail as a whole",
        evidence="in {share:.0%} of the latest {groups:group} all answers are equally bad (reward {reward:.3g} at "
        "most)",
        threshold=_SPREAD,
        remedy="take easier prompts, more answers per group (`group_size`), a selector by difficulty, or a warm start",
    )
    GROUPS_SOLVED = _Facts(
        "groups_solved",
        _INFO,
        "Most groups are solved as a whole",
        evidence="in {share:.0%} of the latest {groups:group} all answers are equally good (reward {reward:.3g} at "
        "least)",
        threshold=_SPREAD,
        remedy="take harder prompts or a selector by difficulty, or end the run",
    )
    REWARD_FELL = _Facts(
        "reward_fell",
        _CRITICAL,
        "The reward fell",
        evidence="the mean of ten steps fell from {best:.3g} at step {best_step:.0f} to {reward:.3g}",
        threshold=_FELL,
        remedy=_RATE + "; look at the metrics that changed just before: mismatch, gradient norm, entropy",
    )
    REWARD_STALLED = _Facts(
        "reward_stalled",
        _WARNING,
        "The reward does not move",
        evidence="it was {before:.3g} at first and is {reward:.3g} after {steps:step}, although groups have a spread",
        threshold="from {limit:.0f} steps without a change beyond the noise of ten steps: runs that learn change "
        "sooner",
        remedy="raise `learning_rate`, check the sign and the scale of the reward, and what filters drop",
    )
    REWARD_HACKED = _Facts(
        "reward_hacked",
        _CRITICAL,
        "The evaluation falls and the reward does not",
        evidence="`{score}` fell from {best:.3g} at version {best_version:.0f} to {value:.3g} at version "
        "{version:.0f}, "
        "while the reward went from {before:.3g} to {reward:.3g}",
        threshold="from a fall of three standard errors: the policy learns what the reward pays and not what it means",
        remedy="read the newest rollouts with the highest rewards, mend the reward, and continue from version "
        "{best_version:.0f}",
    )
    TERM_UNEARNED = _Facts(
        "term_unearned",
        _WARNING,
        "A term of the reward is never earned",
        evidence="`{term}` is {value:.3g} in all of the latest {rollouts:rollout}, while other terms differ",
        threshold="from {limit:.0f} rollouts: a term that never differs teaches nothing, and hides a broken check",
        remedy="look at one answer that should earn it, and correct the term, or leave it out",
    )
    TERM_DOMINATES = _Facts(
        "term_dominates",
        _WARNING,
        "One term of the reward drowns the others",
        evidence="`{term}` moves the reward by {spread:.3g}, and the next term, `{other}`, by {other_spread:.3g}",
        threshold="from {limit:.0f} times the next term: the smaller differences vanish in the advantage of a group",
        remedy="bring the terms to one scale, or set their weights",
    )
    ENTROPY_COLLAPSED = _Facts(
        "entropy_collapsed",
        _CRITICAL,
        "The policy has stopped exploring",
        evidence="its entropy fell from {before:.3g} to {entropy:.2g} nats, and the reward stays at {reward:.3g}",
        threshold="from a tenth of the first entropy without a gain in reward: groups repeat one answer and lose their "
        "spread",
        remedy="add an entropy bonus, or clip higher; " + _RATE,
    )
    ENTROPY_EXPLODED = _Facts(
        "entropy_exploded",
        _CRITICAL,
        "The policy becomes random",
        evidence="its entropy rose from {before:.3g} to {entropy:.3g} nats while the reward fell from {best:.3g} to "
        "{reward:.3g}",
        threshold="from one and a half times the first entropy with a falling reward: updates destroy what was learned",
        remedy=_RATE + "; an entropy bonus may be too large, or a correction for stale rollouts missing",
    )
    GRADIENT_SPIKES = _Facts(
        "gradient_spikes",
        _WARNING,
        "The gradient jumps",
        evidence="its norm was above {limit:.0f} times the median of {median:.3g} in {spikes:step} of the latest "
        "{steps:.0f}, at most {largest:.3g}",
        threshold="from three steps above {limit:.0f} times the median: such updates are noise, and clipping only "
        "bounds them",
        remedy="lower `learning_rate` or `grad_clip`; look for bad rows in these steps",
    )
    UPDATES_SKIPPED = _Facts(
        "updates_skipped",
        _CRITICAL,
        "Updates are skipped",
        evidence="{skipped:update} of the latest {steps:step} had a loss or gradient that is not finite",
        threshold="from two in {steps:.0f} steps: one may be an accident, several are a fault of the loss or its data",
        remedy=_RATE + "; compute in float32; look for log-probabilities that are not finite",
    )
    WEIGHTS_STUCK = _Facts(
        "weights_stuck",
        _WARNING,
        "Updates hardly change the published weights",
        evidence="a share of {share:.2g} of the weights changed with each of the latest {versions:version}, at the "
        "learning rate {rate:.2g}",
        threshold="from fewer than {limit:.1g} (100 steps then change a weight in a hundred): updates are below the "
        "precision in which engines get the weights, so that rollouts do not see them",
        remedy="raise `learning_rate`; serve adapters apart from their base instead of merged",
    )
    CLIPPED = _Facts(
        "clipped",
        _WARNING,
        "Many tokens are clipped",
        evidence="the loss clips or masks {share:.0%} of the trained tokens, at a staleness of {staleness:.2g} "
        "versions",
        threshold="from {limit:.0%}: these tokens have no gradient, and the others pull alone",
        remedy="lower `max_staleness` or the updates per batch; or take a loss for stale rollouts, such as "
        "`decoupled_ppo`",
    )
    ROLLOUTS_STALE = _Facts(
        "rollouts_stale",
        _WARNING,
        "Rollouts are too old for the loss",
        evidence="the policy is {kl:.2g} nats a token away from what wrote its rollouts, {staleness:.2g} versions old",
        threshold="from {limit:.2g} nats: importance weights of old rollouts are then mostly noise",
        remedy="lower `max_staleness`, or add a correction for stale rollouts",
    )
    POLICY_STOPPED = _Facts(
        "policy_stopped",
        _WARNING,
        "One of several policies has stopped learning",
        evidence="in {steps:step} its reward stayed at {reward:.3g} with {signal:.1%} of its tokens in use, while "
        "{other} went from {other_before:.3g} to {other_reward:.3g}",
        threshold="from fewer than {limit:.0%} of the tokens with an advantage: its rewards do not tell its answers "
        "apart",
        remedy="look at its reward and its share of the credit; hold the other policy for a while (its learning rate)",
    )
    TRUNCATED = _Facts(
        "truncated",
        _WARNING,
        "Answers are cut off",
        evidence="{share:.0%} of the answers of the latest ten steps ended at the limit of tokens",
        threshold="from {limit:.0%}, unless it is falling: cut answers count as wrong, so that long reasoning is "
        "punished",
        remedy="raise `max_new_tokens`, or mask cut answers (`mask_truncated`)",
    )
    LENGTH_DRIFTED = _Facts(
        "length_drifted",
        _WARNING,
        "Answers change their length and not their reward",
        evidence="from {before:.0f} to {tokens:.0f} tokens, while the reward went from {reward_before:.3g} to "
        "{reward:.3g}",
        threshold="from {limit:.1f} times longer, or shorter, without a gain: the length itself is what is learned",
        remedy="normalize the loss by tokens instead of by answers, or add a term for the length",
    )
    ANSWERS_REPEAT = _Facts(
        "answers_repeat",
        _WARNING,
        "Different prompts get the same answer",
        evidence="{share:.0%} of the latest {answers:answer} to {prompts:prompt} are one text: {answer}",
        threshold="from {limit:.0%} over ten prompts: the policy no longer reads its prompt",
        remedy=_RATE + "; check that the reward does not pay this text",
    )
    ANSWERS_LOOP = _Facts(
        "answers_loop",
        _WARNING,
        "Answers run in loops",
        evidence="{share:.0%} of the latest {answers:answer} repeat themselves",
        threshold="from {limit:.0%} with text that compresses to an eighth: ordinary text does not",
        remedy="end such answers (`repetition` limits of the workflow), give them the lowest reward; " + _RATE,
    )
    EMPTY_REWARDED = _Facts(
        "empty_rewarded",
        _CRITICAL,
        "Empty answers earn rewards",
        evidence="{share:.0%} of the latest {answers:answer} are empty, and get {reward:.3g}, above the lowest of "
        "{lowest:.3g}",
        threshold="from {limit:.0%}: what an empty answer earns is the easiest thing to learn",
        remedy="let every term of the reward, that of the format too, need content",
    )
    PROMPTS_DEAD = _Facts(
        "prompts_dead",
        _WARNING,
        "Many prompts are never solved",
        evidence="{dead:.0f} of {prompts:prompt} that were tried at three steps or more always failed",
        threshold="from {limit:.0%}: each try costs a whole group and teaches nothing",
        remedy="take these prompts out, or a selector that visits them rarely",
    )
    PROMPTS_REPEATED = _Facts(
        "prompts_repeated",
        _WARNING,
        "The data set has the same prompt several times",
        evidence="{repeated:.0f} of {prompts:prompt} have the text and the answer of another",
        threshold="from {limit:.0%}: repeated prompts get more weight than others, and leak into evaluations",
        remedy="remove the repeats from the data set",
    )
    EVALUATION_LEAKS = _Facts(
        "evaluation_leaks",
        _WARNING,
        "Prompts of the evaluation are trained on",
        evidence="{shared:.0f} of {prompts:prompt} of the evaluation {evaluation} are also in {flow}",
        threshold="from {limit:.0%}: its score then measures memory",
        remedy="evaluate on prompts that no flow trains on",
    )
    TOOLS_FAIL = _Facts(
        "tools_fail",
        _WARNING,
        "Tool calls fail",
        evidence="{share:.0%} of {calls:call} failed[, mostly in rollouts that call {tool}]",
        threshold="from {limit:.0%}: rewards then measure the tool and not the policy",
        remedy="read the calls in the rollouts; mend the tool, its time limit, or how the prompt describes it",
    )
    VERIFIER_FAILS = _Facts(
        "verifier_fails",
        _WARNING,
        "Rollouts fail before they are scored",
        evidence="{share:.0%} of the latest {members:rollout} failed, most ({most:.0%}) in the {boundary}: {error}",
        threshold="from {limit:.0%}: failed rollouts are left out, and what fails is rarely a fair sample",
        remedy="mend what the message names; it stands with the rollouts that failed",
    )
    ROWS_DROPPED = _Facts(
        "rows_dropped",
        _WARNING,
        "The trainer leaves rollouts out",
        evidence="{dropped:rollout} in the latest {steps:step}[, most for their {limit_name}]",
        threshold="from one in two steps: rows that break a limit come from a broken node or a wrong setting",
        remedy="see the node's events; `astraflow doctor` on it",
    )

    severity: Severity
    headline: str
    evidence: str
    threshold: str
    remedy: str
    _value_: str
