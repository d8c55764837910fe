"""How long each turn of an episode took on this node: for the groups that people look at."""

from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby

from astraflow.contract.generation import Generation
from astraflow.contract.ids import PolicyId
from astraflow.contract.spans import Author
from astraflow.contract.trajectories import Int32Array, Trajectory
from astraflow.runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One answer, known again by what it answered."""

    policy: PolicyId
    prompt: bytes
    """Digest of the tokens before it."""
    tokens: Int32Array
    began: float
    ended: float


class TurnTimes:
    """Notes the requests of one task as they are answered, and finds them again in its trajectories."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns: list[_Turn] = []

    @property
    def now(self) -> float:
        """When a request begins."""
        return self._clock.now()

    def note(self, policy: PolicyId, prompt: Int32Array, generation: Generation, *, began: float) -> None:
        """A request was answered just now, all of it here."""
        turn = _Turn(policy=policy, prompt=_digest(prompt), tokens=generation.tokens, began=began, ended=self.now)
        self._turns.append(turn)

    def of(self, trajectory: Trajectory) -> tuple[float, ...]:
        """Seconds of each span; 0 where they are not known: of the first context, and of what another node wrote.

        A stretch of several spans has its time at the first of them: a refresh does not stop the clock. What is read
        between two answers took from the end of one to the beginning of the next, tools included.
        """
        found: list[float] = []
        at, last_ended = 0, None
        for author, stretch in groupby(trajectory.spans, key=lambda span: span.author):
            spans = list(stretch)
            end = at + sum(span.length for span in spans)
            turns = self._written(trajectory, at, end) if author is Author.MODEL else []
            if turns and last_ended is not None and found:
                found[-1] = max(0.0, turns[0].began - last_ended)
            if author is Author.MODEL:
                last_ended = turns[-1].ended if turns else None
            found += [sum(turn.ended - turn.began for turn in turns), *[0.0] * (len(spans) - 1)]
            at = end
        return tuple(found)

    def _written(self, trajectory: Trajectory, at: int, end: int) -> list[_Turn]:
        """The answers that make up the tokens from `at` to `end`; none unless all of them are known."""
        turns: list[_Turn] = []
        while at < end:
            turn = self._taken(trajectory, at, end)
            if turn is None:
                return []
            turns.append(turn)
            at += len(turn.tokens)
        return turns

    def _taken(self, trajectory: Trajectory, at: int, end: int) -> _Turn | None:
        """The answer that begins there. Each is found once: two that are the same were given to two trajectories."""
        before = _digest(trajectory.tokens[:at])
        for place, turn in enumerate(self._turns):
            is_its = turn.policy == trajectory.policy and turn.prompt == before
            length = len(turn.tokens)
            if is_its and 0 < length <= end - at and (turn.tokens == trajectory.tokens[at : at + length]).all():
                return self._turns.pop(place)
        return None


def _digest(tokens: Int32Array) -> bytes:
    return blake2b(tokens.astype("<i4", copy=False).tobytes(), digest_size=16).digest()
