"""Conversations of an ended run, printed in the terminal."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from astraflow.archive.connection import ARCHIVE_PATH
from astraflow.cli.inspection.conversations import print_conversations
from astraflow.contract.ids import FlowId, GroupId
from astraflow.contract.rollouts.tasks import Group
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.samples import TrajectorySamples
from astraflow.dataflow.serving.stream import BUFFERED
from tests import make
from tests.fakes.clock import ManualClock
from tests.fakes.recorded_run import SOLVER


def group(step: int, ordinal: int, answers: list[str]) -> Group:
    """A group of a step, whose members gave these answers to a question of its own."""
    group_id = GroupId(f"train:{step}.{ordinal}")
    episodes = []
    for member, answer in enumerate(answers):
        question = f"<|im_start|>user\nquestion {step}.{ordinal}<|im_end|>\n"
        trajectory = replace(make.trajectory(reward=0.5), prompt_text=question, completion_text=answer)
        episodes.append(replace(make.episode(f"{group_id}/{member}"), trajectories=(trajectory,)))
    return Group(id=group_id, flow=FlowId("train"), prompt=make.prompt(), episodes=tuple(episodes))


def record(folder: Path, groups: dict[int, list[Group]]) -> None:
    """Writes an archive with trained groups by step."""
    path = folder / ARCHIVE_PATH
    path.parent.mkdir(parents=True)
    archive = Archive(path, clock=ManualClock())
    samples = TrajectorySamples(archive, limit=1000, limit_bytes=10**7)
    for step, trained in groups.items():
        for episode in trained:
            samples.add(episode, {SOLVER: BUFFERED}, at=float(step))
            samples.set_outcome(SOLVER, episode.id, outcome="trained", step=step)
    archive.close()


def printed(folder: Path, *, count: int) -> str:
    console = Console(file=StringIO(), width=120)
    print_conversations(console, folder, count=count)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_conversations_of_the_first_and_of_the_last_step_are_printed_one_of_each_prompt(tmp_path: Path) -> None:
    steps = {step: [group(step, ordinal, [f"a{step}", f"b{step}"]) for ordinal in range(2)] for step in (1, 2, 3)}
    record(tmp_path, steps)

    text = printed(tmp_path, count=2)

    assert [f"question {step}.{ordinal}" in text for step in (1, 2, 3) for ordinal in (0, 1)] == [
        *(True, True),
        *(False, False),
        *(True, True),
    ]
    assert text.count("question") == 4
    assert "<|" not in text
    assert text.count("0.50") == 4
    assert printed(tmp_path, count=3).count("question") == 6
    assert printed(tmp_path, count=0) == ""


def test_a_run_without_trained_conversations_prints_nothing(tmp_path: Path) -> None:
    assert printed(tmp_path, count=2) == ""
    record(tmp_path, {})
    assert printed(tmp_path, count=2) == ""
