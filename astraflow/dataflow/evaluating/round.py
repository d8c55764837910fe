"""Rounds of one evaluation, one at a time: every prompt is issued once, and what came back of it is kept."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from astraflow.contract.ids import FlowId, GroupId, PolicyId, Version
from astraflow.contract.values import Json
from astraflow.dataflow.evaluating.scores import Sample
from astraflow.dataflow.issuing.groups import OpenGroup
from astraflow.dataflow.issuing.issuer import check_data
from astraflow.dataflow.rows import RowKeeper, Rows
from astraflow.datasets.base import Dataset
from astraflow.datasets.shuffle import Shuffle


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody wants to know."""

    versions: Mapping[PolicyId, Version]
    actor: str
    reason: str
    asked_at: float
    """Unix seconds."""

    def state_dict(self) -> dict[str, Json]:
        """As JSON."""
        versions: dict[str, Json] = {policy: int(version) for policy, version in self.versions.items()}
        return {"versions": versions, "actor": self.actor, "reason": self.reason, "asked_at": self.asked_at}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Back from JSON."""
        versions = {PolicyId(policy): Version(version) for policy, version in state["versions"].items()}
        return cls(**{**state, "versions": versions})


@dataclass(slots=True, kw_only=True)
class Round:
    """A request that is carried out."""

    number: int
    request: Request
    started_at: float
    """Unix seconds."""
    begun: int = 0
    """Prompts that were issued."""


class Rounds:
    """The source of an evaluation's groups: those of the round that runs, in order; none without one.

    What came of a prompt is a row of its samples, each with the reward and the answer of every policy that took part:
    small enough to be kept for all prompts until the round ends. A sample that broke is not in its row.
    """

    def __init__(self, flow: FlowId, dataset: Dataset, *, prompts: int, samples: int, seed: int) -> None:
        """prompts: how many of the data set; 0 for all."""
        self._flow = flow
        self._dataset = dataset
        self._order = Shuffle(dataset.size, seed=seed)
        self._outcomes = Rows[list[Json]]()
        self.prompts = min(prompts, dataset.size) if prompts else dataset.size
        self.samples = samples
        self.issued = 0
        """Groups of all rounds: the ordinal of the next one."""
        self.version = Version(0)
        """Rounds have their own."""
        self.plugged = None
        self.round: Round | None = None

    def begin(self, round_: Round) -> None:
        """Issue all prompts from now on, with the versions of this round."""
        self.round = round_

    def end(self) -> None:
        """The round is over: forget what came of its prompts."""
        self.round = None
        for place in range(self.prompts):
            self._outcomes.drop(place)

    @property
    def has_more(self) -> bool:
        """Whether there is a prompt that was not issued yet in the round that runs."""
        return self.round is not None and self.round.begun < self.prompts

    def next_group(self) -> OpenGroup:
        """Issue the next prompt; there is one."""
        assert self.round is not None  # noqa: S101 (asked only while `has_more`)
        place = self.round.begun
        group = OpenGroup(
            id=GroupId(f"{self._flow}:{self.issued}"),
            flow=self._flow,
            prompt=self._dataset.prompt(self._order.item(place)),
            index=place,
            size=self.samples,
            pinned=self.round.request.versions,
        )
        self.round.begun += 1
        self.issued += 1
        return group

    def observe(self, group: OpenGroup) -> None:
        """Keep what came of a prompt. Of several trajectories of a policy the last one is its final word."""
        outcome: list[Json] = [
            {str(one.policy): [one.reward, one.answer] for one in episode.trajectories}
            for _, episode in sorted(group.episodes.items())
            if episode.failure is None
        ]
        self._outcomes.put(group.index, outcome)

    def outcomes(self) -> list[list[dict[PolicyId, Sample]]]:
        """Of each prompt that is complete, its samples: what each policy got and answered."""
        return [list(map(_sample_of, row)) for row in self._rows()]

    def succeeded(self) -> list[int]:
        """Of each prompt that is complete, how many samples did not break."""
        return [len(row) for row in self._rows()]

    def advance(self, version: Version) -> None:
        """Which prompt is next does not depend on versions."""

    @property
    def rows(self) -> tuple[str, RowKeeper]:
        """The outcomes."""
        return ("round", self)

    def changed_rows(self) -> dict[int, Json]:
        """Outcomes that came in, or were forgotten, since this was last asked."""
        return self._outcomes.changed()

    def all_rows(self) -> Mapping[int, Json]:
        """All outcomes of the round that runs."""
        return self._outcomes.all()

    def load_rows(self, rows: Mapping[int, Any]) -> None:
        """Go on with these."""
        self._outcomes.load(rows)

    def metrics(self) -> dict[str, float]:
        """A round reports by itself."""
        return {}

    def state_dict(self) -> dict[str, Json]:
        """The cursor and the round that runs, and which data they are about."""
        return {
            "data": self._dataset.fingerprint,
            "issued": self.issued,
            "round": None if self.round is None else _round_state(self.round),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises: InvalidInput when the data set is another one by now."""
        check_data(self._flow, was=state["data"], now=self._dataset.fingerprint)
        self.issued = state["issued"]
        saved = state["round"]
        self.round = None if saved is None else Round(**{**saved, "request": Request.from_state(saved["request"])})

    def _rows(self) -> Iterator[list[Any]]:
        for place in range(self.prompts):
            row = self._outcomes.get(place)
            if row is not None:
                yield row


def _round_state(round_: Round) -> dict[str, Json]:
    return {
        "number": round_.number,
        "request": round_.request.state_dict(),
        "started_at": round_.started_at,
        "begun": round_.begun,
    }


def _sample_of(row: Mapping[str, Any]) -> dict[PolicyId, Sample]:
    return {PolicyId(policy): Sample(reward=reward, answer=answer) for policy, (reward, answer) in row.items()}
