"""The composition root of the maintainer: connects planes, opens the transcript, builds the model, runs the loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.client.connect import connect_agent
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import retry
from astraflow.runtime.service import run_until
from maintainer.agent.config import MaintainerConfig
from maintainer.agent.llm.interface import models
from maintainer.agent.loop import Maintainer
from maintainer.agent.notifications.notice_queue import NoticeQueue
from maintainer.agent.notifications.webhook import Notifier, http_post, webhook_url
from maintainer.agent.observation.names import Names, load_or_create_key
from maintainer.agent.observation.snapshot import SnapshotReader
from maintainer.agent.transcript.transcript import Transcript

log = get_logger()

FIRST_REPORT_S = 60.0
"""Longest wait for the run's name at the start, seconds; later dataflow may be unreachable for any time."""

TRANSCRIPT_FILE, KEY_FILE, NOTICES_FILE = "transcript.jsonl", "names.key", "notices.json"


@asynccontextmanager
async def open_maintainer(
    config: MaintainerConfig,
    *,
    dataflow: str,
    fleet: str,
    token: str,
    authority: Path | None,
    directory: Path,
    clock: Clock | None = None,
) -> AsyncIterator[Maintainer]:
    """Builds a maintainer and connects it for the duration of the block.

    Raises: InvalidInput for unusable settings, CorruptData for damaged files, Conflict if another process holds the
    transcript, Unavailable if dataflow cannot be reached.
    """
    clock = clock or SystemClock()
    llm = models.build(config.model)
    try:
        url = webhook_url(config.notify)
        async with connect_agent(dataflow, fleet, token, name=config.name, authority=authority) as (control, plane):
            report = await retry(control.report, what="the first report", give_up_after_s=FIRST_REPORT_S, clock=clock)
            with Transcript(directory / TRANSCRIPT_FILE, clock) as transcript:
                yield Maintainer(
                    config,
                    run=report.run,
                    snapshot_reader=SnapshotReader(control, plane, clock),
                    fleet=plane,
                    llm=llm,
                    names=Names(load_or_create_key(directory / KEY_FILE), shows_names=config.shows_names),
                    transcript=transcript,
                    notifier=Notifier(
                        config.notify,
                        run=report.run,
                        clock=clock,
                        post=http_post() if url else None,
                        url=url,
                        queue=NoticeQueue(directory / NOTICES_FILE, run=report.run),
                    ),
                    clock=clock,
                    what_if_source=control,
                )
    finally:
        await llm.close()


async def serve(
    config: MaintainerConfig,
    *,
    dataflow: str,
    fleet: str,
    token: str,
    authority: Path | None,
    directory: Path,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
) -> None:
    """Runs the maintainer of the run at `dataflow` until `stop` is set. on_ready: called with the model's kind."""
    connection = {"dataflow": dataflow, "fleet": fleet, "token": token, "authority": authority, "directory": directory}
    async with open_maintainer(config, **connection) as maintainer:  # type: ignore[arg-type]  # values keep the types of the parameters
        on_ready(str(config.model.get("kind")))
        await run_until(stop, maintainer.run(), drain=_no_op)


async def _no_op() -> None:
    """Does nothing: started work is in the transcript, and a model's turn is not awaited."""
