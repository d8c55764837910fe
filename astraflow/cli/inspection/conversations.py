"""Conversations of a run in the terminal: some of its first step and some of its last."""

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from astraflow.archive.connection import ARCHIVE_PATH, open_recorded
from astraflow.archive.samples import find_trajectories
from astraflow.contract.reports.queries import TrajectoryQuery
from astraflow.contract.reports.report import SampledTrajectory

_TRAINED = "trained"

_MARKERS = re.compile(r"<\|[^|>\n]{1,40}\|>")
"""Special tokens of usual chat templates, which are left out."""

_SAMPLES = 200
"""Samples that are read at either end of the archive. Count."""


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
        texts = (_MARKERS.sub("", text).strip() for text in (sample.prompt_text, sample.completion_text))
        table.add_row(*(Text(text) for text in (str(sample.step), *texts, f"{sample.reward:.2f}")))
    console.print(table)


def _first_and_last(archive: Path, count: int) -> tuple[list[SampledTrajectory], list[SampledTrajectory]]:
    """Returns samples of the first recorded step and of the last; empty where there are none."""
    if not archive.is_file():
        return [], []
    at_end = TrajectoryQuery(outcome=_TRAINED, limit=_SAMPLES)
    with closing(open_recorded(archive)) as database:
        oldest = find_trajectories(database, replace(at_end, after=0)).trajectories
        newest = find_trajectories(database, at_end).trajectories
    if not oldest:
        return [], []
    first_step = min(sample.step or 0 for sample in oldest)
    last_step = max(sample.step or 0 for sample in newest)
    first = [sample for sample in oldest if sample.step == first_step]
    last = [sample for sample in newest if sample.step == last_step and last_step != first_step]
    return _of_different_prompts(first, count), _of_different_prompts(last, count)


def _of_different_prompts(samples: list[SampledTrajectory], count: int) -> list[SampledTrajectory]:
    """Returns up to `count` samples: one of each group, then further ones."""
    groups = {sample.group: sample for sample in samples}
    chosen = list(groups.values())
    chosen += [sample for sample in samples if sample not in chosen]
    return chosen[:count]
