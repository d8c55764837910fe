"""Export of a run's sampled trajectories to a bucket or a folder, as compressed files of JSON lines.

    FOLDER/trajectories/000000000001-000000000500.jsonl.gz     the trajectories with these ordinals, oldest first

The names of the files are the position: an export that starts again continues behind the newest file.
"""

import asyncio
import gzip
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from pydantic import TypeAdapter

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.queries import TrajectoryPage, TrajectoryQuery
from astraflow.contract.reports.report import Report, SampledTrajectory
from astraflow.runtime.clock import Clock
from astraflow.runtime.locks import exclusive_lock
from astraflow.runtime.retries import TRANSIENT
from astraflow.weights.store.storage import storages
from astraflow.weights.store.storage.base import Folder

FOLDER = PolicyId("trajectories")
"""Folder of the files in the storage, which has folders by policy."""

FILE_TRAJECTORIES = 500
"""Largest number of trajectories in a file. Count."""

BUFFERED = "buffered"
"""Outcome of a trajectory that waits for a trainer."""

BUFFERED_S = 600.0
"""Time after which a trajectory is exported although it is still buffered, so that it does not delay newer ones."""

_FILE_NAME = re.compile(r"(\d{12})-(\d{12})\.jsonl\.gz")
_LINES: TypeAdapter[SampledTrajectory] = TypeAdapter(SampledTrajectory)

TrajectorySource: TypeAlias = Callable[[TrajectoryQuery], Awaitable[TrajectoryPage]]
"""Query of the samples of a run."""


class TrajectoryExport:
    """Export of one run into one folder of a storage. Requires that no other export writes there."""

    def __init__(self, folder: Folder, source: TrajectorySource, *, location: str) -> None:
        self._folder = folder
        self._source = source
        self._location = location
        self._last_ordinal: int | None = None
        self.count = 0
        """Trajectories exported by this process."""

    async def export(self, *, now: float, is_over: bool) -> None:
        """Writes files with all trajectories that are due, oldest first.

        now: Unix seconds. is_over: outcomes do not change any more, so that buffered trajectories are due too.
        Raises: Unavailable, DeadlineExceeded; InvalidInput when the folder has trajectories of another run.
        """
        while True:
            after = await self._position()
            query = TrajectoryQuery(after=after, limit=FILE_TRAJECTORIES, with_tokens=True, with_calls=True)
            page = await self._source(query)
            oldest_first = reversed(page.trajectories)
            due = tuple(oldest_first) if is_over else tuple(_settled(oldest_first, now=now))
            if not due:
                return
            await asyncio.to_thread(self._write, due)
            if not page.has_newer or len(due) < len(page.trajectories):
                return

    async def follow(
        self,
        reports: AsyncIterable[Report | AstraFlowError],
        *,
        every_s: float,
        clock: Clock,
        on_problem: Callable[[str], None],
    ) -> None:
        """Exports every `every_s` seconds, and once more when a report says that the run is complete.

        reports: of the run, and errors while it is unavailable. on_problem: called for an error that may pass, once
        until the next success. Raises: errors that a retry does not cure.
        """
        due_at, problem = clock.now(), ""
        async for report in reports:
            if isinstance(report, AstraFlowError):
                failure = str(report)
            else:
                is_over = report.completion is not None and report.completion.ends_run
                if clock.now() < due_at and not is_over:
                    continue
                due_at = clock.now() + every_s
                failure = await self._failure(now=clock.wall(), is_over=is_over)
                if is_over and not failure:
                    return
            if failure and not problem:
                on_problem(failure)
            problem = failure

    async def _failure(self, *, now: float, is_over: bool) -> str:
        """Exports; returns the error that a retry may cure, or an empty text."""
        try:
            await self.export(now=now, is_over=is_over)
        except TRANSIENT as problem:
            return str(problem)
        return ""

    async def _position(self) -> int:
        """Returns the ordinal of the newest exported trajectory. Raises: InvalidInput for those of another run."""
        if self._last_ordinal is None:
            names = await asyncio.to_thread(self._folder.sizes)
            exported = max((int(match[2]) for name in names if (match := _FILE_NAME.fullmatch(name))), default=0)
            newest = (await self._source(TrajectoryQuery(limit=1))).trajectories
            recorded = newest[0].ordinal if newest else 0
            if exported > recorded:
                raise InvalidInput(
                    f"cannot export trajectories to {self._location!r}: it has trajectories up to number {exported} of "
                    f"another run, since this run has {recorded}; give each run its own folder or prefix",
                    code="trajectories.another_run",
                )
            self._last_ordinal = exported
        return self._last_ordinal

    def _write(self, trajectories: tuple[SampledTrajectory, ...]) -> None:
        first, last = trajectories[0].ordinal, trajectories[-1].ordinal
        lines = b"".join(_LINES.dump_json(trajectory) + b"\n" for trajectory in trajectories)
        self._folder.write(f"{first:012d}-{last:012d}.jsonl.gz", gzip.compress(lines, mtime=0))
        self._last_ordinal = last
        self.count += len(trajectories)


@contextmanager
def export_folder(to: str, options: Mapping[str, Any], *, state: Path) -> Iterator[Folder]:
    """Opens the target of an export, `s3://BUCKET/PREFIX` or a folder of this machine, which nothing else may use.

    options: of the bucket's storage, such as `endpoint`. state: folder for the state of exports to buckets.
    Raises: InvalidInput when the target cannot be used or is in use, Unavailable.
    """
    bucket, _, prefix = to.removeprefix("s3://").partition("/")
    is_bucket = to.startswith("s3://")
    directory = state / quote(to, safe="") if is_bucket else Path(to)
    spec = {"kind": "s3", "bucket": bucket, "prefix": prefix, **options} if is_bucket else {"kind": "disk", **options}
    refusal = InvalidInput(
        f"cannot export trajectories to {to!r}: another export writes there; stop it, or give another target",
        code="trajectories.in_use",
    )
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(directory / "lock", refusal=refusal), closing(storages.build(spec, directory)) as storage:
        storage.acquire()
        yield storage.folder(FOLDER)


def _settled(oldest_first: Iterable[SampledTrajectory], *, now: float) -> Iterable[SampledTrajectory]:
    """Returns the oldest trajectories up to the first whose outcome may still change."""
    return takewhile(lambda each: each.outcome != BUFFERED or now - each.at > BUFFERED_S, oldest_first)
