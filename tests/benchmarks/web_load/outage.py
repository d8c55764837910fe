"""The web process is away for ten minutes of the run, and comes back: how soon its pages miss nothing."""

import asyncio
import time
from pathlib import Path

from tests.benchmarks.web_load.browsers import logged_in
from tests.benchmarks.web_load.programs import Feeding, web_process

AWAY_S = 600


async def away_for(feed: Feeding, directory: Path) -> list[tuple[str, str, str]]:
    """Ten minutes pass in the run while nobody follows it: what, what was found, what is wanted."""
    await feed.say(f"ahead {AWAY_S}")
    await asyncio.sleep(1.0)
    async with web_process(feed, directory) as web, logged_in(web) as client:
        began = time.monotonic()
        gap = float("inf")
        ats: list[float] = []
        while time.monotonic() - began < 60:
            answer = await client.get("/api/v1/series.json?chart=reward&range=1h")
            ats = (
                [row["at"] for row in answer.json()["points"]]
                if answer.is_success and "points" in answer.json()
                else []
            )
            if len(ats) > AWAY_S / 3:
                break
            await asyncio.sleep(0.2)
        took = time.monotonic() - began
        gap = max((after - before for before, after in zip(ats, ats[1:], strict=False)), default=gap)
    return [
        ("caught up after 10 min away", f"{took:.1f} s after it listened", "<= 5 s"),
        ("widest gap in the chart then", f"{gap:.1f} s, {len(ats)} points", "<= 5 s"),
    ]
