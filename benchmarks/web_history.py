"""Time to read a week of chart data, its size on disk, and the cost of storing a second.

    python -m benchmarks.web_history [--nodes 1000] [--days 7] [--rounds 50] [--directory DIR]

Fills the web process's SQLite with the data of a run of this many nodes after this many days, at every level for its
retention time; then reads as charts do, and writes as the recorder does.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sqlalchemy import insert
from sqlmodel import Session

from web.database import run_records
from web.database.db import Database, open_database
from web.database.tables import SeriesRolled
from web.history import series_queries, series_writer
from web.history.points import VALUES
from web.history.samples import (
    DAY_S,
    FIVE_MINUTE_LEVEL,
    HOUR_S,
    LEVELS,
    NODE_VALUES,
    SECOND_LEVEL,
    TEN_SECOND_LEVEL,
    Level,
    Sample,
    node_subject,
    policy_subject,
)

END_AT = 1_800_000_000.0
RANGES = {"15 min": HOUR_S / 4, "1 h": HOUR_S, "6 h": 6 * HOUR_S, "24 h": DAY_S, "7 days": 7 * DAY_S}
BATCH = 200_000

Row = tuple[str, str, str, str]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; a temporary one by default")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=chosen.directory) as directory:
        _measure(Path(directory), chosen.nodes, chosen.days, chosen.rounds)
    return 0


def _measure(directory: Path, nodes: int, days: float, rounds: int) -> None:
    database = open_database(directory)
    began = time.monotonic()
    run_id = database.write_sync(lambda session: _fill(session, nodes, days * DAY_S))
    console = Console()
    size = sum(file.stat().st_size for file in directory.iterdir())
    console.print(f"{days:g} days, {nodes} nodes: {size / 1e6:,.0f} MB, filled in {time.monotonic() - began:.0f} s")
    table = Table("what", "p50 ms", "p99 ms", "rows")
    for row in (*_reads(database, run_id, nodes, rounds), *_writes(database, run_id, nodes, rounds)):
        table.add_row(*row)
    console.print(table)
    database.close()


def _fill(session: Session, nodes: int, duration_s: float) -> int:
    sighting = run_records.SeenRun(
        name="r", recipe="", dataflow="", started_at=END_AT - duration_s, at=END_AT, sequence=1, report_json="{}"
    )
    run_id = run_records.upsert_run_record(session, sighting, record_id=None)
    subjects = {policy_subject("p"): VALUES} | {node_subject(f"node-{n:05}"): NODE_VALUES for n in range(nodes)}
    for subject, values in subjects.items():
        is_node = subject.startswith(node_subject(""))
        newest = Sample(
            level=TEN_SECOND_LEVEL if is_node else SECOND_LEVEL,
            at=END_AT,
            subject=subject,
            values=dict.fromkeys(values, 0.5),
        )
        series = list(series_writer.add(session, run_id, [newest], names={}).values())
        for level in LEVELS:
            kept_s = level.node_retention_s if is_node else level.retention_s
            _fill_level(session, level, series, min(duration_s, kept_s))
    for level in (TEN_SECOND_LEVEL, FIVE_MINUTE_LEVEL):
        session.add(SeriesRolled(run_id=run_id, width_s=level.width_s, until=END_AT))
    return run_id


def _fill_level(session: Session, level: Level, series: list[int], duration_s: float) -> None:
    numbers = np.random.default_rng(0).random(8192).tolist()
    count = int(duration_s / level.width_s)
    ends = {} if level is SECOND_LEVEL else {"low": 0.0, "high": 1.0}
    for series_id in series:
        for first in range(0, count, BATCH):
            places = range(first, min(first + BATCH, count))
            rows = [
                {"series_id": series_id, "at": END_AT - (count - at) * level.width_s, "number": numbers[at % 8192]}
                | ends
                for at in places
            ]
            session.execute(insert(level.table), rows)


def _reads(database: Database, run_id: int, nodes: int, rounds: int) -> Iterator[Row]:
    read = partial(_read, database, run_id)
    for label, range_s in RANGES.items():
        yield _timed(f"a policy's numbers, {label}", rounds, partial(read, [policy_subject("p")], range_s, VALUES))
    names = [node_subject(f"node-{number * 37 % nodes:05}") for number in range(rounds)]
    for label in ("1 h", "7 days"):
        some = partial(read, names, RANGES[label], NODE_VALUES)
        yield _timed(f"one node's numbers, {label}", rounds, some)


def _read(database: Database, run_id: int, subjects: list[str], range_s: float, values: tuple[str, ...]) -> int:
    """Reads rows of the first subject, which moves to the end of the list."""
    subjects.append(subject := subjects.pop(0))
    query = partial(
        series_queries.rows, run_id=run_id, subject=subject, values=values, since=END_AT - range_s, until=END_AT
    )
    return len(database.read_sync(query))


def _writes(database: Database, run_id: int, nodes: int, rounds: int) -> Iterator[Row]:
    names = database.read_sync(lambda session: series_writer.series_ids(session, run_id))
    at = [END_AT]

    def second() -> int:
        at[0] += 1.0
        return _write(database, run_id, names, [_policy_sample(at[0])], at[0])

    def ten_seconds() -> int:
        at[0] += 10.0
        samples = [_policy_sample(at[0]), *(_node_sample(at[0] - 10.0, number) for number in range(nodes))]
        return _write(database, run_id, names, samples, at[0])

    yield _timed("a flush of one second", rounds, second)
    yield _timed(f"a flush with ten seconds of {nodes} nodes", rounds, ten_seconds)


def _write(database: Database, run_id: int, names: series_writer.SeriesIds, samples: list[Sample], at: float) -> int:
    def work(session: Session) -> None:
        series_writer.add(session, run_id, samples, names=names)
        series_writer.roll(session, run_id, since=min(sample.at for sample in samples), until=at)

    database.write_sync(work)
    return sum(len(sample.values) for sample in samples)


def _policy_sample(at: float) -> Sample:
    return Sample(level=SECOND_LEVEL, at=at, subject=policy_subject("p"), values=dict.fromkeys(VALUES, 0.5))


def _node_sample(at: float, number: int) -> Sample:
    values = dict.fromkeys(NODE_VALUES, 0.5)
    return Sample(level=TEN_SECOND_LEVEL, at=at, subject=node_subject(f"node-{number:05}"), values=values)


def _timed(what: str, rounds: int, work: Callable[[], int]) -> Row:
    taken_ms, rows = [], 0
    for _ in range(rounds):
        began = time.perf_counter()
        rows = work()
        taken_ms.append((time.perf_counter() - began) * 1e3)
    p50, p99 = np.percentile(taken_ms, (50, 99))
    return what, f"{p50:.1f}", f"{p99:.1f}", f"{rows:,}"


if __name__ == "__main__":
    sys.exit(main())
