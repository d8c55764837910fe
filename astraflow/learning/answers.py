"""Checks of the texts of sampled rollouts: what the policy writes, and to which prompts."""

import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence

from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.reports.report import EVALUATED, SampledTrajectory
from astraflow.learning.facts import Found, LearningFacts

ENOUGH_ANSWERS = 40
ENOUGH_PROMPTS = 10
REPEATED_SHARE = 0.5
LOOP_SHARE = 0.3
LOOP_CHARACTERS = 200
"""Shorter answers are not compressed: even ordinary ones hold few different words."""
LOOP_FACTOR = 8.0
EMPTY_SHARE = 0.1
SAME_PROMPTS = 0.1
LEAKED_SHARE = 0.05
SHOWN_CHARACTERS = 60


def answer_checks(facts: LearningFacts) -> Found:
    """Yields answers that ignore their prompts, run in loops, or are empty and rewarded."""
    answers = facts.trained
    if len(answers) < ENOUGH_ANSWERS:
        return
    if not facts.is_mostly_rewarded:
        yield from _repeated_answers(answers)
        long = [rollout for rollout in answers if len(rollout.completion_text) >= LOOP_CHARACTERS]
        loops = sum(_loops(rollout.completion_text) for rollout in long)
        if loops >= LOOP_SHARE * len(answers):
            figures = {"share": loops / len(answers), "answers": len(answers), "limit": LOOP_SHARE}
            yield LearningFault.ANSWERS_LOOP, figures
    empty = [rollout for rollout in answers if not rollout.completion_text.strip()]
    lowest = facts.reward_range[0]
    earned = [rollout.reward for rollout in empty if rollout.reward > lowest]
    if len(earned) >= EMPTY_SHARE * len(answers):
        yield (
            LearningFault.EMPTY_REWARDED,
            {
                "share": len(empty) / len(answers),
                "answers": len(answers),
                "reward": sum(earned) / len(earned),
                "lowest": lowest,
                "limit": EMPTY_SHARE,
            },
        )


def _repeated_answers(answers: Sequence[SampledTrajectory]) -> Found:
    texts = Counter(text for rollout in answers if (text := rollout.completion_text.strip()))
    if not texts:
        return
    (text, count), *_ = texts.most_common(1)
    same = [rollout for rollout in answers if rollout.completion_text.strip() == text]
    rewards, all_rewards = [rollout.reward for rollout in same], [rollout.reward for rollout in answers]
    is_right = sum(rewards) / count > (max(all_rewards) + min(all_rewards)) / 2
    answered = len({rollout.prompt_text for rollout in same})
    if count >= REPEATED_SHARE * len(answers) and answered >= ENOUGH_PROMPTS and not is_right:
        yield (
            LearningFault.ANSWERS_REPEAT,
            {
                "share": count / len(answers),
                "answers": len(answers),
                "prompts": len({rollout.prompt_text for rollout in answers}),
                "answer": repr(text[:SHOWN_CHARACTERS]),
                "limit": REPEATED_SHARE,
            },
        )


def _loops(text: str) -> bool:
    encoded = text.encode()
    return len(encoded) > LOOP_FACTOR * len(zlib.compress(encoded))


def data_checks(facts: LearningFacts) -> Found:
    """Yields prompts that stand in a data set several times, or in an evaluation and in training."""
    prompt_of = {(group.group, group.policy): group.prompt for group in facts.groups if group.prompt}
    texts: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    evaluations: dict[str, set[str]] = defaultdict(set)
    for rollout in facts.rollouts:
        if rollout.outcome == EVALUATED:
            evaluations[rollout.flow].add(rollout.prompt_text)
        elif prompt := prompt_of.get((rollout.group, rollout.policy)):
            texts[rollout.flow][prompt] = (rollout.prompt_text, rollout.reference_text)
    for of_prompt in texts.values():
        repeated = sum(count - 1 for count in Counter(of_prompt.values()).values())
        if repeated >= max(SAME_PROMPTS * len(of_prompt), ENOUGH_PROMPTS / 2):
            figures = {"repeated": repeated, "prompts": len(of_prompt), "limit": SAME_PROMPTS}
            yield LearningFault.PROMPTS_REPEATED, figures
            break
    yield from _leaks(texts, evaluations)


def _leaks(texts: dict[str, dict[str, tuple[str, str]]], evaluations: dict[str, set[str]]) -> Found:
    for evaluation, prompts in evaluations.items():
        for flow, of_prompt in texts.items():
            shared = len(prompts & {prompt for prompt, _ in of_prompt.values()})
            if shared >= max(LEAKED_SHARE * len(prompts), 3):
                yield (
                    LearningFault.EVALUATION_LEAKS,
                    {
                        "shared": shared,
                        "prompts": len(prompts),
                        "evaluation": evaluation,
                        "flow": flow,
                        "limit": LEAKED_SHARE,
                    },
                )
                return
