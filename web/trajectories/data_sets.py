"""Data sets from rollouts: lines that the dataset `jsonl` and `astraflow calibrate` read."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import groupby
from typing import Any

from astraflow.contract.reports.report import SampledTrajectory
from web.trajectories.views import versions_of

GOOD, BAD, WRONG_REWARD = "good", "bad", "wrong reward"
"""Labels with a meaning for data sets."""

PROMPT_AND_ANSWER = 2
"""Stretches of one author in a trajectory with one answer. Count."""


class DataSetKind(Enum):
    """Kind of a data set."""

    SFT = "sft"
    """Questions with the answers of the policy, for the workflow `dataset_answers` and the loss `sft`."""
    PREFERENCE = "preference"
    """Questions with a better and a worse answer (`rejected`), for `dataset_answers` and the loss `dpo`."""
    PROMPTS = "prompts"
    """The prompts, each once, for any flow."""
    REGRESSION = "regression"
    """Answers with the reward that they should have (`label`), for `astraflow calibrate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Trajectory as data sets need it; the labels of the page store it as JSON."""

    ordinal: int
    group: str
    policy: str
    step: int | None
    versions: str
    """Versions that wrote it, in words."""
    prompt_fields: Mapping[str, Any]
    """Fields of its prompt; empty if the run did not record them."""
    prompt_text: str
    completion_text: str
    reference_text: str
    reward: float | None
    """None without a reward, because the episode failed."""
    reward_terms: Mapping[str, float]
    is_single_answer: bool
    """Whether the completion is one answer; False with several turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRollout:
    """Rollout with its labels."""

    rollout: Rollout
    labels: frozenset[str] = frozenset()
    expected_reward: float | None = None
    """Reward that a person wrote down; None without one."""

    @property
    def target(self) -> float | None:
        """Reward that the rollout should have; None if it is unknown."""
        reward = self.rollout.reward
        if self.expected_reward is not None:
            return self.expected_reward
        if GOOD in self.labels or BAD in self.labels:
            return float(GOOD in self.labels)
        if WRONG_REWARD in self.labels:
            return 1.0 - reward if reward in (0.0, 1.0) else None
        return reward


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Rows of a data set, and the rollouts that it cannot have."""

    kind: DataSetKind
    rows: tuple[Mapping[str, Any], ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Rollouts that are left out, by reason. Count."""

    @property
    def text(self) -> str:
        """The rows as JSON lines."""
        return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in self.rows)


def rollout_of(sample: SampledTrajectory) -> Rollout:
    """Returns a sampled trajectory as a rollout."""
    return Rollout(
        ordinal=sample.ordinal,
        group=sample.group,
        policy=sample.policy,
        step=sample.step,
        versions=versions_of(sample),
        prompt_fields=json.loads(sample.prompt_fields or "{}"),
        prompt_text=sample.prompt_text,
        completion_text=sample.completion_text,
        reference_text=sample.reference_text,
        reward=None if sample.failure else sample.reward,
        reward_terms=dict(sample.reward_terms),
        is_single_answer=sum(1 for _ in groupby(span.author for span in sample.spans)) <= PROMPT_AND_ANSWER,
    )


def rollout_json(rollout: Rollout) -> str:
    """Returns a rollout as JSON."""
    return json.dumps(asdict(rollout), ensure_ascii=False)


def rollout_from_json(text: str) -> Rollout:
    """Returns the rollout that `rollout_json` wrote."""
    return Rollout(**json.loads(text))


def data_set(kind: DataSetKind, rollouts: Sequence[LabelledRollout]) -> DataSet:
    """Returns the data set of these rollouts."""
    left_out: Counter[str] = Counter()
    usable = [labelled for labelled in rollouts if not _is_left_out(kind, labelled, left_out)]
    rows = {
        DataSetKind.SFT: _answers,
        DataSetKind.PREFERENCE: _pairs,
        DataSetKind.PROMPTS: _prompts,
        DataSetKind.REGRESSION: _examples,
    }[kind](usable)
    return DataSet(kind=kind, rows=tuple(rows), left_out=left_out)


def _is_left_out(kind: DataSetKind, labelled: LabelledRollout, left_out: Counter[str]) -> bool:
    """Returns whether the data set cannot have the rollout, and counts the reason."""
    rollout, target = labelled.rollout, labelled.target
    if not rollout.prompt_fields:
        reason = "fields of the prompt are not recorded"
    elif kind is DataSetKind.PROMPTS:
        return False
    elif rollout.reward is None:
        reason = "episode failed"
    elif not rollout.is_single_answer:
        reason = "several turns"
    elif kind is DataSetKind.SFT and BAD in labelled.labels:
        reason = "labelled bad"
    elif kind is not DataSetKind.SFT and target is None:
        reason = "expected reward unknown"
    elif kind is DataSetKind.REGRESSION and target is not None and not 0 <= target <= 1:
        reason = "expected reward not in 0 to 1"
    else:
        return False
    left_out[reason] += 1
    return True


def _answers(rollouts: Iterable[LabelledRollout]) -> Iterator[Mapping[str, Any]]:
    for labelled in rollouts:
        yield {**labelled.rollout.prompt_fields, "answer": labelled.rollout.completion_text, **_source(labelled)}


def _pairs(rollouts: Iterable[LabelledRollout]) -> Iterator[Mapping[str, Any]]:
    """Yields pairs of the same prompt: the best with the worst, the second best with the second worst, ..."""
    for members in _by_prompt(rollouts):
        ranked = sorted(members, key=lambda labelled: -(labelled.target or 0.0))
        for better, worse in zip(ranked, reversed(ranked), strict=True):
            if (better.target or 0.0) <= (worse.target or 0.0):
                break
            yield {
                **better.rollout.prompt_fields,
                "answer": better.rollout.completion_text,
                "rejected": worse.rollout.completion_text,
                **_source(better, worse),
            }


def _prompts(rollouts: Iterable[LabelledRollout]) -> Iterator[Mapping[str, Any]]:
    for members in _by_prompt(rollouts):
        yield {**members[0].rollout.prompt_fields, **_source(members[0])}


def _examples(rollouts: Iterable[LabelledRollout]) -> Iterator[Mapping[str, Any]]:
    for labelled in rollouts:
        completion = {"completion": labelled.rollout.completion_text, "label": labelled.target}
        yield {**labelled.rollout.prompt_fields, **completion, **_source(labelled)}


def _by_prompt(rollouts: Iterable[LabelledRollout]) -> Iterable[list[LabelledRollout]]:
    prompts: dict[str, list[LabelledRollout]] = {}
    for labelled in rollouts:
        key = json.dumps(labelled.rollout.prompt_fields, sort_keys=True)
        prompts.setdefault(key, []).append(labelled)
    return prompts.values()


def _source(*rollouts: LabelledRollout) -> Mapping[str, Any]:
    """Returns the fields that name the trajectories of a row."""
    return {"trajectories": [labelled.rollout.ordinal for labelled in rollouts]}
