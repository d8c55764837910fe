"""`astraflow trajectories` beside a run: a killed export continues, and the bucket has each trajectory once."""

import asyncio
import gzip
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from astraflow.tracking.trajectory_export import FOLDER
from astraflow.weights.store.storage import storages
from tests.system.processes import PATIENCE_S, ROOT, command, running
from tests.weights.buckets import bucket_service, make_bucket

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

BUCKET = "runs"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with bucket_service() as address:
        make_bucket(address, BUCKET)
        yield address


def export(prefix: str, endpoint: str, state: Path, *options: str) -> list[str]:
    """Returns the command that exports to a prefix of the bucket, every second."""
    words = [f"s3://{BUCKET}/{prefix}", "--set", f"endpoint={endpoint}", "--set", "region=us-east-1"]
    return command("trajectories", *words, "--every-s", "1", "--out", str(state), *options)


def exported(prefix: str, endpoint: str, directory: Path) -> Mapping[str, bytes]:
    """Returns the exported files of a prefix by name."""
    spec = {"kind": "s3", "bucket": BUCKET, "prefix": prefix, "endpoint": endpoint, "region": "us-east-1"}
    folder = storages.build(spec, directory).folder(FOLDER)
    files = {}
    for name, size_bytes in sorted(folder.sizes().items()):
        with closing(folder.open(name)) as reader:
            files[name] = bytes(reader.read(0, size_bytes))
    return files


def lines(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for content in files.values() for line in gzip.decompress(content).splitlines()]


async def test_an_export_that_was_killed_continues_until_the_run_is_complete(tmp_path: Path, endpoint: str) -> None:
    state = tmp_path / "state"
    async with running("smoke", tmp_path / "run", "--no-web") as run:
        await run.until(lambda report: report.streams[0].training.steps > 0)
        address = (run.facts()["dataflow"], "--token-file", str(tmp_path / "run" / "token"))
        killed = subprocess.Popen(export("live", endpoint, state, *address), cwd=ROOT)
        deadline = time.monotonic() + PATIENCE_S
        while not exported("live", endpoint, tmp_path):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        killed.kill()
        assert killed.wait() < 0
        subprocess.run(export("live", endpoint, state, *address), cwd=ROOT, check=True, timeout=200)
        run.process.wait(PATIENCE_S)

    directory = ("--run-dir", str(tmp_path / "run"))
    subprocess.run(export("ended", endpoint, state, *directory), cwd=ROOT, check=True, timeout=60)
    live, ended = (lines(exported(prefix, endpoint, tmp_path)) for prefix in ("live", "ended"))
    assert [line["ordinal"] for line in live] == [line["ordinal"] for line in ended] == list(range(1, len(ended) + 1))
    changed = [before for before, after in zip(live, ended, strict=True) if before != after]
    assert {line["outcome"] for line in changed} <= {"buffered"}  # trained by a step that ended after the completion
