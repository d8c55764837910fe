"""Durations of the turns of an episode on this node, for sampled groups."""

from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Generation
from astraflow.contract.rollouts.spans import Author
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One generation, identified by the tokens before it."""

    policy: PolicyId
    prompt: bytes
    """Digest of the tokens before the generation."""
    tokens: Int32Array
    began: float
    ended: float


class TurnTimes:
    """Records the completed requests of one task and matches them with its trajectories."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns: list[_Turn] = []

    @property
    def now(self) -> float:
        """Current clock time, in seconds."""
        return self._clock.now()

    def record(self, policy: PolicyId, prompt: Int32Array, generation: Generation, *, began: float) -> None:
        """Records a request that this node just completed without recalled tokens. began: clock time of its start."""
        turn = _Turn(policy=policy, prompt=_digest(prompt), tokens=generation.tokens, began=began, ended=self.now)
        self._turns.append(turn)

    def span_times_s(self, trajectory: Trajectory) -> tuple[float, ...]:
        """Returns the seconds of each span; 0 where unknown: the first context, and generations of another node.

        Consecutive spans of one author have their time at the first span, because a weight refresh does not stop the
        clock. Context between two generations lasts from the end of one to the start of the next, tools included.
        """
        span_seconds: list[float] = []
        at, last_ended = 0, None
        for author, author_spans in groupby(trajectory.spans, key=lambda span: span.author):
            spans = list(author_spans)
            end = at + sum(span.length for span in spans)
            turns = self._turns_between(trajectory, at, end) if author is Author.MODEL else []
            if turns and last_ended is not None and span_seconds:
                span_seconds[-1] = max(0.0, turns[0].began - last_ended)
            if author is Author.MODEL:
                last_ended = turns[-1].ended if turns else None
            span_seconds += [sum(turn.ended - turn.began for turn in turns), *[0.0] * (len(spans) - 1)]
            at = end
        return tuple(span_seconds)

    def _turns_between(self, trajectory: Trajectory, at: int, end: int) -> list[_Turn]:
        """Returns the turns that cover the tokens from `at` to `end`; empty unless all of them are known."""
        turns: list[_Turn] = []
        while at < end:
            turn = self._take_turn(trajectory, at, end)
            if turn is None:
                return []
            turns.append(turn)
            at += len(turn.tokens)
        return turns

    def _take_turn(self, trajectory: Trajectory, at: int, end: int) -> _Turn | None:
        """Removes and returns the turn that starts at `at`: equal turns belong to different trajectories."""
        before = _digest(trajectory.tokens[:at])
        for index, turn in enumerate(self._turns):
            is_same = turn.policy == trajectory.policy and turn.prompt == before
            length = len(turn.tokens)
            if is_same and 0 < length <= end - at and (turn.tokens == trajectory.tokens[at : at + length]).all():
                return self._turns.pop(index)
        return None


def _digest(tokens: Int32Array) -> bytes:
    return blake2b(tokens.astype("<i4", copy=False).tobytes(), digest_size=16).digest()
