"""The composition root of the maintainer: connects planes, opens the transcript, builds the model, runs the loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.client.connect import connect_agent
from astraflow.runtime.aio import retry
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.service import run_until
from maintainer.config import MaintainerConfig
from maintainer.llm.models import models
from maintainer.loop import Maintainer
from maintainer.names import Names, kept_key
from maintainer.notifying import Notifier, address, http_post
from maintainer.outbox import Outbox
from maintainer.sight import Eyes
from maintainer.transcript import Transcript

log = get_logger()

FIRST_REPORT_S = 60.0
"""How long the name of the run is waited for at the start; later dataflow may be away for any time."""

TRANSCRIPT_FILE, KEY_FILE, NOTICES_FILE = "transcript.jsonl", "names.key", "notices.json"


@asynccontextmanager
async def built(
    config: MaintainerConfig,
    *,
    dataflow: str,
    fleet: str,
    token: str,
    authority: Path | None,
    directory: Path,
    clock: Clock | None = None,
) -> AsyncIterator[Maintainer]:
    """A maintainer, for the block.

    Raises: InvalidInput for what cannot be used, CorruptData for files that are not as they were written, Conflict for
    a transcript in use, Unavailable without dataflow.
    """
    clock = clock or SystemClock()
    llm = models.build(config.model)
    try:
        url = address(config.notify)
        async with connect_agent(dataflow, fleet, token, name=config.name, authority=authority) as (control, plane):
            report = await retry(control.report, what="the first report", give_up_after_s=FIRST_REPORT_S, clock=clock)
            with Transcript(directory / TRANSCRIPT_FILE, clock) as transcript:
                yield Maintainer(
                    config,
                    run=report.run,
                    eyes=Eyes(control, plane, clock),
                    fleet=plane,
                    llm=llm,
                    names=Names(kept_key(directory / KEY_FILE), shows_names=config.shows_names),
                    transcript=transcript,
                    notifier=Notifier(
                        config.notify,
                        run=report.run,
                        clock=clock,
                        post=http_post() if url else None,
                        url=url,
                        outbox=Outbox(directory / NOTICES_FILE, run=report.run),
                    ),
                    clock=clock,
                    recorded=control,
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
    """Run the maintainer of the run at `dataflow` until `stop` is set. on_ready: called with the model's name."""
    given = {"dataflow": dataflow, "fleet": fleet, "token": token, "authority": authority, "directory": directory}
    async with built(config, **given) as maintainer:  # type: ignore[arg-type]  # each as it is above
        on_ready(str(config.model.get("kind")))
        await run_until(stop, maintainer.run(), drain=_nothing)


async def _nothing() -> None:
    """What was begun is in the transcript; a turn of a model is not waited for."""
