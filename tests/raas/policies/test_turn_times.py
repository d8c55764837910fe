"""Durations of turns: matched to the trajectories built from them, and only where the match is certain."""

import numpy as np

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.raas.policies.turn_times import TurnTimes
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder
from tests.fakes.clock import ManualClock

SOLVER = PolicyId("solver")


def tokens(text: str) -> Int32Array:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def written(text: str, *versions: tuple[int, int]) -> Generation:
    """versions: (version, tokens that it wrote); by default version 1 wrote all of them."""
    spans = versions or ((1, len(text)),)
    return Generation(
        tokens=tokens(text),
        logprobs=np.zeros(len(text), dtype=np.float32),
        spans=tuple(VersionSpan(version=Version(version), length=length) for version, length in spans),
        finish=Finish.STOP,
    )


class Talk:
    """Transcript whose generations take time."""

    def __init__(self, times: TurnTimes, clock: ManualClock) -> None:
        self.transcript = TrajectoryBuilder(SOLVER)
        self._times = times
        self._clock = clock

    def read(self, text: str, *, took_s: float = 0.0) -> None:
        self._clock.advance(took_s)
        self.transcript.add_context(tokens(text))

    def wrote(self, generation: Generation, *, took_s: float, is_noted: bool = True) -> None:
        prompt, began = self.transcript.tokens(), self._times.now
        self._clock.advance(took_s)
        if is_noted:
            self._times.record(SOLVER, prompt, generation, began=began)
        self.transcript.add_generation(generation)

    def ended(self) -> Trajectory:
        return self.transcript.build(1.0)


def talk() -> tuple[TurnTimes, Talk]:
    clock = ManualClock()
    times = TurnTimes(clock)
    return times, Talk(times, clock)


def test_answers_and_the_waits_between_them_have_durations() -> None:
    times, conversation = talk()
    conversation.read("prompt")
    conversation.wrote(written("call"), took_s=2.0)
    conversation.read("tool said", took_s=5.0)
    conversation.wrote(written("answer"), took_s=3.0)
    assert times.span_times_s(conversation.ended()) == (0.0, 2.0, 5.0, 3.0)


def test_the_duration_of_an_answer_across_a_weight_update_is_counted_once() -> None:
    times, conversation = talk()
    conversation.read("prompt")
    conversation.wrote(written("answer", (1, 2), (2, 4)), took_s=3.0)
    assert times.span_times_s(conversation.ended()) == (0.0, 3.0, 0.0)


def test_consecutive_answers_are_one_turn() -> None:
    times, conversation = talk()
    conversation.read("prompt")
    conversation.wrote(written("begun"), took_s=1.0)
    conversation.wrote(written("ended"), took_s=2.0)
    assert times.span_times_s(conversation.ended()) == (0.0, 3.0)


def test_answers_of_another_node_and_the_wait_after_them_have_no_duration() -> None:
    times, conversation = talk()
    conversation.read("prompt")
    conversation.wrote(written("call"), took_s=2.0, is_noted=False)
    conversation.read("tool said", took_s=5.0)
    conversation.wrote(written("answer"), took_s=3.0)
    assert times.span_times_s(conversation.ended()) == (0.0, 0.0, 0.0, 3.0)


def test_equal_answers_to_one_prompt_are_assigned_to_one_trajectory_each() -> None:
    clock = ManualClock()
    times = TurnTimes(clock)
    pair = [Talk(times, clock), Talk(times, clock)]
    for chat, took_s in zip(pair, (1.0, 4.0), strict=True):
        chat.read("prompt")
        chat.wrote(written("alike"), took_s=took_s)
    assert [times.span_times_s(conversation.ended()) for conversation in pair] == [(0.0, 1.0), (0.0, 4.0)]
    assert times.span_times_s(pair[0].ended()) == (0.0, 0.0)
