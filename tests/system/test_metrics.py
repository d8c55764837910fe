"""Metrics of a real run, as Prometheus scrapes them."""

import subprocess
from pathlib import Path

import httpx
import pytest

from tests.system.processes import running

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

ENDLESS = ("--no-web", "--set", "stop.reward=2.0", "--set", "stop.steps=100000")


async def test_a_run_serves_metrics_at_its_announced_address(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *ENDLESS) as run:
        await run.until(lambda report: report.streams[0].training.steps > 20)
        address = run.facts()["metrics"]
        assert address.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient() as client:
            text = (await client.get(address)).text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    (steps,) = [line for line in text.splitlines() if line.startswith("astraflow_stream_trainer_steps_total{")]
    assert float(steps.rpartition(" ")[2]) > 0
    (changed,) = [line for line in text.splitlines() if line.startswith("astraflow_version_changed_ratio{")]
    assert 0 < float(changed.rpartition(" ")[2]) < 1


async def test_metrics_can_be_turned_off(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *ENDLESS, "--set", "dataflow.metrics=off") as run:
        await run.until(lambda report: report.streams[0].training.steps > 0)
        assert run.facts()["metrics"] == ""
