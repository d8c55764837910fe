"""How long turns took: found again in the trajectories that were made of them, and only where it is known."""

import numpy as np

from astraflow.contract.generation import Finish, Generation, VersionSpan
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.trajectories import Int32Array, Trajectory
from astraflow.raas.turns import TurnTimes
from astraflow.workflows.transcript import Transcript
from tests.fakes.clock import ManualClock

SOLVER = PolicyId("solver")


def tokens(text: str) -> Int32Array:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def written(text: str, *versions: tuple[int, int]) -> Generation:
    """versions: which one wrote how many tokens; one wrote all of them by default."""
    spans = versions or ((1, len(text)),)
    return Generation(
        tokens=tokens(text),
        logprobs=np.zeros(len(text), dtype=np.float32),
        spans=tuple(VersionSpan(version=Version(version), length=length) for version, length in spans),
        finish=Finish.STOP,
    )


class Talk:
    """A transcript whose answers take time."""

    def __init__(self, times: TurnTimes, clock: ManualClock) -> None:
        self.transcript = Transcript(SOLVER)
        self._times = times
        self._clock = clock

    def read(self, text: str, *, took_s: float = 0.0) -> None:
        self._clock.advance(took_s)
        self.transcript.read(tokens(text))

    def wrote(self, generation: Generation, *, took_s: float, is_noted: bool = True) -> None:
        prompt, began = self.transcript.tokens(), self._times.now
        self._clock.advance(took_s)
        if is_noted:
            self._times.note(SOLVER, prompt, generation, began=began)
        self.transcript.wrote(generation)

    def ended(self) -> Trajectory:
        return self.transcript.trajectory(1.0)


def talk() -> tuple[TurnTimes, Talk]:
    clock = ManualClock()
    times = TurnTimes(clock)
    return times, Talk(times, clock)


def test_answers_and_what_was_waited_for_between_them_have_their_times() -> None:
    times, one = talk()
    one.read("prompt")
    one.wrote(written("call"), took_s=2.0)
    one.read("tool said", took_s=5.0)
    one.wrote(written("answer"), took_s=3.0)
    assert times.of(one.ended()) == (0.0, 2.0, 5.0, 3.0)


def test_an_answer_over_a_refresh_has_its_time_once() -> None:
    times, one = talk()
    one.read("prompt")
    one.wrote(written("answer", (1, 2), (2, 4)), took_s=3.0)
    assert times.of(one.ended()) == (0.0, 3.0, 0.0)


def test_answers_with_nothing_between_them_are_one_turn() -> None:
    times, one = talk()
    one.read("prompt")
    one.wrote(written("begun"), took_s=1.0)
    one.wrote(written("ended"), took_s=2.0)
    assert times.of(one.ended()) == (0.0, 3.0)


def test_what_another_node_wrote_has_no_time_and_neither_has_what_followed_it() -> None:
    times, one = talk()
    one.read("prompt")
    one.wrote(written("call"), took_s=2.0, is_noted=False)
    one.read("tool said", took_s=5.0)
    one.wrote(written("answer"), took_s=3.0)
    assert times.of(one.ended()) == (0.0, 0.0, 0.0, 3.0)


def test_the_same_answer_to_the_same_prompt_is_given_to_each_trajectory_once() -> None:
    clock = ManualClock()
    times = TurnTimes(clock)
    pair = [Talk(times, clock), Talk(times, clock)]
    for one, took_s in zip(pair, (1.0, 4.0), strict=True):
        one.read("prompt")
        one.wrote(written("alike"), took_s=took_s)
    assert [times.of(one.ended()) for one in pair] == [(0.0, 1.0), (0.0, 4.0)]
    assert times.of(pair[0].ended()) == (0.0, 0.0)
