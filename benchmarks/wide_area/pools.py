"""Three pools at 100, 60 and 30 % of a speed, two of them at the far end of the link, against the same all near.

Dataflow, weight store, three RaaS nodes and a trainer are the real ones, in processes of their own over mutual TLS.
Engines and the trainer's backend only sleep. Dataflow, store, trainer and the first pool share one end of the link.

    python -m benchmarks.wide_area.pools NEAR FAR      inside the namespace FAR; NEAR empty for all at one end
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from astraflow.access.authority import Authority
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.reports.report import NodeState, Report
from astraflow.recipe.config import Recipe
from astraflow.recipe.loading import snapshot
from astraflow.runtime.retries import retry
from astraflow.wire.channel import authority_client_tls, dial
from benchmarks.wide_area.link import FAR_ADDRESS, RunningLink
from tests.system.processes import ROOT, RunningRun, command, running

SPEEDS = {"local": 1.0, "remote-60": 0.6, "remote-30": 0.3}
GROUPS, GROUP_SIZE, STEP_S = 16, 8, 2.5
CAPACITY, TOKENS, TOKENS_PER_S = 32, 50.0, 50.0
"""At full speed 32 episodes a second; the trainer needs 51, the three pools make 61."""
WARM_UP, STEPS = 5, 20
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """State of the run at the end of one step."""

    number: int
    done: dict[str, float]
    """Episodes by pool, since the run began."""
    wait_s: float
    busy_s: float
    """Seconds of the trainer since the run began: waiting (`wait_s`) and all other time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A fetch of a version by a pool."""

    version: int
    pool: str
    seconds: float
    size_bytes: int
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run."""

    steps: list[Step]
    fetches: list[Fetch]

    @property
    def wait(self) -> float:
        """Share of its time that the trainer waited, after the warm-up."""
        first, last = self.steps[0], self.steps[-1]
        waited_s = last.wait_s - first.wait_s
        return waited_s / (waited_s + last.busy_s - first.busy_s)

    def made(self, pool: str) -> list[float]:
        """Returns episodes of a pool between the ends of two steps."""
        done = [step.done[pool] for step in self.steps]
        return [after - before for before, after in pairwise(done)]


def measure(link: RunningLink, *, is_remote: bool) -> Outcome:
    """Runs until the trainer made `WARM_UP + STEPS` steps."""
    module = [sys.executable, "-m", "benchmarks.wide_area.pools", link.near if is_remote else ""]
    done = subprocess.run(link.in_far(*module), stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, timeout=400)
    result = json.loads(done.stdout.splitlines()[-1])
    return Outcome(
        steps=[Step(**step) for step in result["steps"]], fetches=[Fetch(**fetch) for fetch in result["fetches"]]
    )


async def _measure(near: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recipe.json"
        file.write_text(snapshot(_recipe()))
        options = ("--no-web", "--host", FAR_ADDRESS)
        async with running(str(file), Path(folder) / "run", *options, gone_within_s=30.0) as run:
            authority, facts = await _begun(run), run.facts()
            async with dial(facts["dataflow"], token=run.token(), tls=authority_client_tls(authority)) as link:
                client = ControlPlaneClient(link)
                await retry(client.report, what="waiting for dataflow")
                with _joined(run, near, pin=authority.pin):
                    return await _watch(client)


async def _begun(run: RunningRun) -> Authority:
    while not (run.directory / "run.json").exists():
        assert run.process.poll() is None, "the run did not begin"
        await asyncio.sleep(POLL_S)
    return Authority.load(run.directory / "authority")


async def _watch(control: ControlPlaneClient) -> Outcome:
    steps: list[Step] = []
    fetches: list[Fetch] = []
    last_versions: dict[str, int] = {}
    report = await control.report()
    while len(_ready(report)) < len(SPEEDS):
        await asyncio.sleep(POLL_S)
        report = await control.report()
    begun = report.streams[0].training.steps + WARM_UP
    while not steps or steps[-1].number < begun + STEPS:
        report = await control.report()
        stream, nodes = report.streams[0], _ready(report)
        for pool, node in nodes.items():
            link = node.links[0]
            if link.versions > last_versions.setdefault(pool, link.versions):
                last_versions[pool] = link.versions
                version = next(iter(node.versions.values()))
                fetches.append(
                    Fetch(
                        version=version,
                        pool=pool,
                        seconds=link.latest_fetch_s,
                        size_bytes=link.latest_bytes,
                        behind=link.latest_versions_behind,
                    )
                )
        if stream.training.steps >= begun and (not steps or stream.training.steps > steps[-1].number):
            done = {pool: node.counters["episodes_done"] for pool, node in nodes.items()}
            busy_s = stream.training.compute_s + stream.training.publish_s
            steps.append(Step(number=stream.training.steps, done=done, wait_s=stream.training.wait_s, busy_s=busy_s))
        await asyncio.sleep(POLL_S)
    return Outcome(steps=steps, fetches=fetches)


def _ready(report: Report) -> dict[str, Any]:
    return {node.facts.pool: node for node in report.nodes if node.state is NodeState.READY}


@contextmanager
def _joined(run: RunningRun, near: str, *, pin: str) -> Iterator[None]:
    with ExitStack() as stack:
        for pool in [pool for pool in SPEEDS if pool != "local"]:
            arguments = command("join", str(run.facts()["enroll"]), "--ca-hash", pin, "--pool", pool, "--name", pool)
            arguments += ["--engine", _toml(_engine(pool)), "--capacity", str(CAPACITY), "--region", "far away"]
            arguments += ["--pull", "{use_shared_memory = false}"]
            where = ["ip", "netns", "exec", near] if near else []
            environment = {**os.environ, "ASTRAFLOW_TOKEN": run.token()}
            process = subprocess.Popen(
                [*where, *arguments], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
        yield


def _recipe() -> Recipe:
    values = {
        "name": "three-pools",
        "seed": 0,
        "stop": {"steps": 1_000_000},
        "policies": {
            "solver": {
                "model": {"kind": "scripted"},
                "batch_groups": GROUPS,
                "max_staleness": 8,
                "backend": {"kind": "scripted", "step_s": STEP_S, "width": 1024, "layers": 4, "density": 0.01},
            }
        },
        "flows": {
            "train": {
                "dataset": {"kind": "scripted", "size": 40_000},
                "workflow": {"kind": "single_turn", "policy": "solver", "max_new_tokens": 200},
                "reward": {"kind": "exact_match"},
                "group_size": GROUP_SIZE,
            }
        },
        "nodes": {
            "count": 1,
            "capacity": CAPACITY,
            "text_share": 0.0,
            "engine": _engine("local"),
            "pull": {"use_shared_memory": False},
        },
        "dataflow": {"heartbeat_s": 0.5, "report_s": 0.5},
    }
    return Recipe.parse(values, where="benchmark")


def _engine(pool: str) -> dict[str, Any]:
    return {
        "kind": "scripted",
        "tokens": {"mean": TOKENS, "spread": 0.5},
        "first_token_s": {"mean": 0.0},
        "tokens_per_s": TOKENS_PER_S * SPEEDS[pool],
    }


def _toml(value: Any) -> str:
    """Formats an inline table."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def main(arguments: Sequence[str]) -> None:
    """Runs once, from inside the far end."""
    sys.stdout.write(json.dumps(asdict(asyncio.run(_measure(arguments[0])))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
