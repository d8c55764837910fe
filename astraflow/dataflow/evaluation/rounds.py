"""Rounds of one evaluation, one at a time: issues every prompt once and stores its samples."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Self

from astraflow.archive.reports import DELETE_OLD_ROUNDS, INSERT_ROUND, MAX_STORED_ROUNDS, round_columns
from astraflow.contract.ids import FlowId, GroupId, PolicyId, Version
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.values import Json
from astraflow.dataflow.evaluation.scores import Sample
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.issuing.groups import OpenGroup
from astraflow.dataflow.issuing.issuer import check_dataset_unchanged, usable_prompt
from astraflow.dataflow.storage.prompt_rows import PromptRows, RowProvider
from astraflow.datasets.base import Dataset
from astraflow.datasets.shuffle import Shuffle


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """Request for a round of an evaluation."""

    versions: Mapping[PolicyId, Version]
    actor: str
    reason: str
    requested_at: float
    """Unix seconds."""

    def state_dict(self) -> dict[str, Json]:
        """Returns the request as JSON."""
        versions: dict[str, Json] = {policy: int(version) for policy, version in self.versions.items()}
        return {"versions": versions, "actor": self.actor, "reason": self.reason, "requested_at": self.requested_at}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Creates a request from its JSON."""
        versions = {PolicyId(policy): Version(version) for policy, version in state["versions"].items()}
        return cls(**{**state, "versions": versions})


@dataclass(slots=True, kw_only=True)
class Round:
    """A round that is running."""

    number: int
    request: EvaluationRequest
    started_at: float
    """Unix seconds."""
    issued_prompts: int = 0
    """Number of prompts issued so far."""


class EvaluationRounds:
    """Group source of an evaluation: the prompts of the running round, in order; no groups without a round.

    The outcome of a prompt is a row of its samples, each with the reward and the answer of every policy and role that
    took part: small enough to keep for all prompts until the round ends. Failed samples are left out of the row.
    """

    def __init__(self, flow: FlowId, dataset: Dataset, *, prompts: int, samples: int, seed: int) -> None:
        """prompts: number of prompts taken from the dataset; 0: all."""
        self._flow = flow
        self._dataset = dataset
        self._order = Shuffle(dataset.size, seed=seed)
        self._samples_by_prompt = PromptRows[list[Json]]()
        self.prompts = min(prompts, dataset.size) if prompts else dataset.size
        self.samples = samples
        self.issued = 0
        """Groups issued in all rounds; the ordinal of the next group."""
        self.version = Version(0)
        """Unused: each round pins its own versions."""
        self.unusable: list[str] = []
        """Causes of prompts in whose place others were issued, and which were not reported yet."""
        self.slot_plugins = None
        self.round: Round | None = None

    def begin(self, round_: Round) -> None:
        """Starts issuing all prompts with the versions of this round."""
        self.round = round_

    def end(self) -> None:
        """Ends the round and discards the outcomes of its prompts."""
        self.round = None
        for index in range(self.prompts):
            self._samples_by_prompt.drop(index)

    @property
    def has_more(self) -> bool:
        """True if the running round has prompts that were not issued yet."""
        return self.round is not None and self.round.issued_prompts < self.prompts

    def next_group(self) -> OpenGroup:
        """Issues the next prompt. Call only while `has_more`."""
        assert self.round is not None  # noqa: S101 (called only while `has_more`)
        index = self.round.issued_prompts
        places = chain([index], count(self.prompts + index))  # a row that no prompt of the round has, if there is one
        _, prompt = usable_prompt(
            self._dataset, lambda: self._order.item(next(places) % self._dataset.size), self.unusable
        )
        group = OpenGroup(
            id=GroupId(f"{self._flow}:{self.issued}"),
            flow=self._flow,
            prompt=prompt,
            prompt_index=index,
            size=self.samples,
            pinned=self.round.request.versions,
        )
        self.round.issued_prompts += 1
        self.issued += 1
        return group

    def observe(self, group: OpenGroup) -> None:
        """Stores the outcome of a prompt. With several trajectories of a role the last one is its final answer."""
        outcome: list[Json] = [
            _final_answers(episode) for _, episode in sorted(group.episodes.items()) if episode.failure is None
        ]
        self._samples_by_prompt.put(group.prompt_index, outcome)

    def prompt_samples(self) -> list[list[dict[tuple[PolicyId, str], Sample]]]:
        """Returns the samples of each complete prompt: the reward and the answer of each policy and role, without the
        suffix of later attempts."""
        return [list(map(_sample_of, row)) for row in self._rows()]

    def succeeded(self) -> list[int]:
        """Returns, for each complete prompt, the number of samples that did not fail."""
        return [len(row) for row in self._rows()]

    def advance(self, version: Version) -> None:
        """Does nothing: the next prompt does not depend on versions."""

    @property
    def rows(self) -> tuple[str, RowProvider]:
        """Returns the name and the provider of the outcome rows."""
        return ("round", self)

    def changed_rows(self) -> dict[int, Json]:
        """Returns the outcomes that were added or discarded since the last call."""
        return self._samples_by_prompt.changed()

    def all_rows(self) -> Mapping[int, Json]:
        """Returns all outcomes of the running round."""
        return self._samples_by_prompt.all()

    def load_rows(self, rows: Mapping[int, Any]) -> None:
        """Restores the outcomes."""
        self._samples_by_prompt.load(rows)

    def metrics(self) -> dict[str, float]:
        """Returns no metrics: rounds have their own reports."""
        return {}

    def state_dict(self) -> dict[str, Json]:
        """Returns the cursor, the running round, and the fingerprint of the dataset."""
        return {
            "data": self._dataset.fingerprint,
            "issued": self.issued,
            "round": None if self.round is None else _round_state(self.round),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state. Raises: InvalidInput when the dataset has changed."""
        check_dataset_unchanged(
            self._flow, saved_fingerprint=state["data"], current_fingerprint=self._dataset.fingerprint
        )
        self.issued = state["issued"]
        saved = state["round"]
        self.round = (
            None if saved is None else Round(**{**saved, "request": EvaluationRequest.from_state(saved["request"])})
        )

    def _rows(self) -> Iterator[list[Any]]:
        for index in range(self.prompts):
            row = self._samples_by_prompt.get(index)
            if row is not None:
                yield row


def _round_state(round_: Round) -> dict[str, Json]:
    return {
        "number": round_.number,
        "request": round_.request.state_dict(),
        "started_at": round_.started_at,
        "issued_prompts": round_.issued_prompts,
    }


def _final_answers(episode: Episode) -> list[Json]:
    """Returns policy, role, reward and answer of the last trajectory of each role."""
    last = {(str(trajectory.policy), trajectory.base_role): trajectory for trajectory in episode.trajectories}
    return [[*slot, trajectory.reward, trajectory.answer] for slot, trajectory in last.items()]


def _sample_of(row: Iterable[Any]) -> dict[tuple[PolicyId, str], Sample]:
    return {(PolicyId(policy), role): Sample(reward=reward, answer=answer) for policy, role, reward, answer in row}


class RoundArchive:
    """Writes ended rounds to the archive, in addition to the journal: runs resume from the journal, people read the
    archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def add(self, report: EvaluationReport) -> None:
        """Stores an ended round; deletes the oldest beyond the limit."""
        columns = round_columns(report)
        self._archive.put(INSERT_ROUND, *columns, size_bytes=len(columns[1]), must_keep=True)
        self._archive.put(DELETE_OLD_ROUNDS, MAX_STORED_ROUNDS)

    def restore(self, ended: Iterable[EvaluationReport]) -> None:
        """Restores rounds that the archive lost in a crash, or that a new archive never had."""

        for report in ended:
            self.add(report)
