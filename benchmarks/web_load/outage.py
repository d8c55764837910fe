"""Ten minutes of the run without the web process: the time until its pages are complete again."""

import asyncio
import itertools
import time
from pathlib import Path

from benchmarks.web_load.browsers import logged_in
from benchmarks.web_load.processes import RunningReportSource, web_process

AWAY_S = 600
MOST_S = 60.0


async def measure_outage(feed: RunningReportSource, directory: Path) -> list[tuple[str, str, str]]:
    """Lets ten minutes pass in the run without the web process; returns rows of quantity, measurement and target.

    They pass by the run's sequence, not by the clock.
    """
    await feed.say(f"ahead {AWAY_S}")
    await asyncio.sleep(1.0)
    async with web_process(feed, directory) as web, logged_in(web) as client:
        began, ats = time.monotonic(), list[float]()
        while time.monotonic() - began < MOST_S:
            answer = await client.get("/api/v1/series.json?chart=reward&range=15m")
            ats = [row["unix_s"] for row in answer.json()] if answer.is_success else []
            if ats and ats[-1] - ats[0] >= AWAY_S:
                break
            await asyncio.sleep(0.2)
        took = time.monotonic() - began
    gap = max((after - before for before, after in itertools.pairwise(ats)), default=float("inf"))
    return [
        ("caught up after 10 min away", f"{took:.1f} s after it listened", "<= 5 s"),
        ("widest gap in the chart then", f"{gap:.1f} s between {len(ats)} points", "<= 5 s"),
    ]
