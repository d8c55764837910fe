"""Conversations of a run in the terminal: some of its first step and some of its last."""

from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from astraflow.archive.connection import ARCHIVE_PATH, open_recorded
from astraflow.archive.samples import find_trajectories
from astraflow.contract.queries import TrajectoryQuery
from astraflow.contract.reports import SampledTrajectory

_TRAINED = "trained"


def print_conversations(console: Console, directory: Path, *, count: int) -> None:
    """Prints `count` trained trajectories of the first recorded step, and of the last, with different prompts as far as
    there are; nothing when the run trained none. directory: folder of the run, which has ended."""
    if not count:
        return
    first, last = _first_and_last(directory / ARCHIVE_PATH, count)
    if not first:
        return
    table = Table("step", "prompt", "answer", "reward", title="conversations", title_justify="left", show_lines=True)
    for sample in (*first, *last):
        row = (str(sample.step), sample.prompt_text.strip(), sample.completion_text.strip(), f"{sample.reward:.2f}")
        table.add_row(*(Text(text) for text in row))
    console.print(table)


def _first_and_last(archive: Path, count: int) -> tuple[list[SampledTrajectory], list[SampledTrajectory]]:
    """Returns samples of the first recorded step and of the last; empty where there are none."""
    if not archive.is_file():
        return [], []
    query = TrajectoryQuery(outcome=_TRAINED, limit=MAX_SAMPLES)
    with closing(open_recorded(archive)) as database:
        oldest = find_trajectories(database, TrajectoryQuery(outcome=_TRAINED, limit=MAX_SAMPLES, after=0)).trajectories
        newest = find_trajectories(database, query).trajectories
    if not oldest:
        return [], []
    first_step = min(sample.step or 0 for sample in oldest)
    last_step = max(sample.step or 0 for sample in newest)
    first = [sample for sample in oldest if sample.step == first_step]
    last = [sample for sample in newest if sample.step == last_step and last_step != first_step]
    return _of_different_prompts(first, count), _of_different_prompts(last, count)


MAX_SAMPLES = 200
"""Samples that are read at either end of the archive."""


def _of_different_prompts(samples: list[SampledTrajectory], count: int) -> list[SampledTrajectory]:
    """Returns up to `count` samples: one of each group, then further ones."""
    groups = {sample.group: sample for sample in samples}
    chosen = list(groups.values())
    chosen += [sample for sample in samples if sample not in chosen]
    return chosen[:count]
