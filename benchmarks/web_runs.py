"""Time of the page with many runs on one machine: `python -m benchmarks.web_runs [--runs 200 --runs 500] [--like RUN]`.

Fills a home with copies of a run folder, starts the page as `astraflow ui` does, and measures its start, the time until
the list has every run, and then the list, the table in the terminal's form, and a changed note.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests import make
from tests.fakes.recorded_run import fill, recorded_archive, run_folder
from tests.fakes.recorded_steps import step
from tests.fakes.web import form_token

REPEATS = 20
STEPS = 300
START_S = 120.0
_LEFT_OUT = shutil.ignore_patterns("weights", "checkpoints", "*.safetensors", "*.lock")


def fill_home(home: Path, count: int, like: Path | None) -> None:
    """Writes run folders: copies of one, each with a name of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        source = like or _synthetic(Path(temporary) / "run")
        facts = json.loads((source / "run.json").read_text())
        for number in range(count):
            target = home / "runs" / f"run-{number:04d}"
            shutil.copytree(source, target, ignore=_LEFT_OUT)
            (target / "run.json").write_text(json.dumps({**facts, "run": target.name}))


def _synthetic(folder: Path) -> Path:
    """Returns a run of some minutes with steps, reports and groups of rollouts."""
    archive = recorded_archive(run_folder(folder))
    reports = (make.report(make.stream_report(steps=number), sequence=number) for number in range(1, STEPS + 1))
    fill(archive, groups=40, reports=tuple(reports), steps=tuple(step(number) for number in range(1, STEPS + 1)))
    archive.close()
    return folder


@asynccontextmanager
async def _page(home: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Starts the page and yields a client with all permissions."""
    directory = home / "web"
    directory.mkdir(mode=0o700)
    arguments = ["-m", "web", "--directory", str(directory), "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, env=os.environ | {"ASTRAFLOW_HOME": str(home)}
    )
    try:
        assert process.stdout is not None  # requested with PIPE
        async with asyncio.timeout(START_S):
            while not (line := (await process.stdout.readline()).decode()).startswith("ready "):
                pass
        async with httpx.AsyncClient(base_url=line.split()[1], timeout=60.0) as client:
            await client.get((directory / "login-link").read_text())
            client.headers["origin"] = str(client.base_url).rstrip("/")
            client.headers["x-form-token"] = form_token(await client.get("/settings"))
            yield client
    finally:
        process.terminate()
        await process.wait()


async def measure(count: int, like: Path | None = None) -> dict[str, float]:
    """Returns seconds by what was measured."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        await asyncio.to_thread(fill_home, home, count, like)
        began_at = time.perf_counter()
        async with _page(home) as client:
            times = {"ready": time.perf_counter() - began_at}
            listed = await _listed(client, count)
            times["all runs listed"] = time.perf_counter() - began_at
            run = listed[0]["id"]
            times["page of the list, median"] = await _median(lambda _: client.get("/runs"))
            times["search in the list, median"] = await _median(
                lambda n: client.get("/runs", params={"text": f"{n:04d}"})
            )
            times["list over REST, median"] = await _median(lambda _: client.get("/api/v1/runs"))
            times["changed note, median"] = await _median(
                lambda n: client.patch(f"/api/v1/runs/{run}/metadata", json={"note": f"note {n}"})
            )
        return times


async def _listed(client: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    """Returns the newest runs as soon as all are listed."""
    while True:
        page = (await client.get("/api/v1/runs")).json()
        if page["total"] >= count:
            return list(page["items"])
        await asyncio.sleep(0.05)


async def _median(request: Callable[[int], Awaitable[httpx.Response]]) -> float:
    times = []
    for number in range(REPEATS):
        began_at = time.perf_counter()
        (await request(number)).raise_for_status()
        times.append(time.perf_counter() - began_at)
    return statistics.median(times)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", action="append", type=int, help="number of runs; 200 and 500 by default")
    parser.add_argument("--like", type=Path, help="folder of a run to copy; a synthetic one by default")
    chosen = parser.parse_args()
    for count in chosen.runs or [200, 500]:
        print(f"{count} runs")  # noqa: T201 (the result)
        for name, seconds in asyncio.run(measure(count, chosen.like)).items():
            print(f"  {name}: {seconds * 1000:,.0f} ms")  # noqa: T201 (the result)


if __name__ == "__main__":
    main()
