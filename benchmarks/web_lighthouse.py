"""Lighthouse scores of pages of a run: `python -m benchmarks.web_lighthouse --lighthouse PATH`.

PATH is its program: after `npm install --prefix DIR lighthouse`, `DIR/node_modules/.bin/lighthouse`.
This process serves the pages, over a synthetic run and a real fleet service in memory.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.fakes.browser import CHROMIUM
from tests.fakes.control_plane import FakeControlPlane
from tests.web.all_pages import served_site

LIMIT_S = 120.0
CATEGORIES = ("performance", "accessibility", "best-practices")
FIGURES = ("first-contentful-paint", "largest-contentful-paint", "total-blocking-time", "total-byte-weight")


async def _measure(program: Path, pages: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        async with served_site(directory, FakeControlPlane(sequence=150), is_launched=False) as served:
            headers = directory / "headers.json"
            cookies = "; ".join(f"{name}={value}" for name, value in served.admin.cookies.items())
            headers.write_text(json.dumps({"Cookie": cookies}))
            table = Table("page", "as", *CATEGORIES, *FIGURES)
            for page in pages:
                for name in ("desktop", "mobile"):
                    report = await _asked(program, served.web.address + page, headers, name, directory)
                    scores = [f"{report['categories'][category]['score'] * 100:.0f}" for category in CATEGORIES]
                    figures = [
                        report["audits"][audit]["displayValue"].removeprefix("Total size was ") for audit in FIGURES
                    ]
                    table.add_row(page, name, *scores, *figures)
    Console(width=150).print(table)


async def _asked(program: Path, address: str, headers: Path, name: str, directory: Path) -> dict[str, Any]:
    answer = directory / "answer.json"
    process = await asyncio.create_subprocess_exec(
        *(str(program), address, "--quiet", "--output=json", f"--output-path={answer}"),
        *(f"--extra-headers={headers}", f"--only-categories={','.join(CATEGORIES)}"),
        "--chrome-flags=--headless=new --no-sandbox --disable-gpu",
        *(["--preset=desktop"] if name == "desktop" else []),
        env={**os.environ, "CHROME_PATH": str(CHROMIUM)},
        stdout=sys.stderr,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    report: dict[str, Any] = json.loads(answer.read_text())
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lighthouse", type=Path, required=True)
    parser.add_argument("--pages", nargs="+", default=["/", "/nodes", "/dataflow"])
    chosen = parser.parse_args()
    asyncio.run(_measure(chosen.lighthouse, chosen.pages))
