"""Evaluations of a run whose nodes have real servers, watched from outside: processes, samples, weights and steps.

    python -m benchmarks.server_evaluation [vllm|sglang|openai_tokens] [--nodes 2] [--steps 20]
                                                 [--every-versions 5] [--limit-s 1500]

With `openai_tokens` one node uses a vLLM server that this program starts and refreshes as another party would. Runs
the recipe `reverse` with a tiny model on this machine. For each round the table has the servers that ran at most,
the nodes that were reserved at most, the seconds for which their weights were held back, the largest number of versions
by which any other node was behind, the steps of the trainer meanwhile, and the versions that wrote the samples.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from astraflow.archive.connection import ARCHIVE_PATH, open_recorded
from astraflow.archive.reports import find_rounds
from astraflow.archive.samples import find_trajectories
from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.reports.queries import TrajectoryQuery
from astraflow.contract.reports.report import Report, SampledTrajectory
from astraflow.raas.engines import engines
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.runtime.processes import supervised
from tests.engines.other_party import closed_after, node_engine, refreshing
from tests.fakes.forking import ForkingPython
from tests.system.processes import RunningRun, running

EVALUATION, POLICY = "progress", "solver"
PROMPTS, SAMPLES = 192, 4
_WATCH_EVERY_S = 0.25
_PAGE = 100
"""Trajectories that are read at once."""
MODEL = {"kind": "tiny", "hidden_size": 128, "heads": 2}
"""vLLM on a CPU needs heads of at least 32 elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """State of the run at one time."""

    servers: Mapping[int, int]
    """Servers that run, by the process of their node. Count."""
    report: Report


@dataclass(slots=True, kw_only=True)
class WatchedRound:
    """A round of the evaluation."""

    report: EvaluationReport
    servers: int = 0
    """Most servers of one node. Count."""
    reserved: int = 0
    """Most nodes that were reserved at once before the run was complete; then all may be. Count."""
    steps: int = 0
    """Steps that the trainer made between the first and the last observation of the round. Count."""
    lag: int = 0
    """Most versions by which a node that was not reserved was behind the trainer."""
    held_s: list[float] = field(default_factory=list)
    """Time from the first pinned task of a node to the release of its weights. Seconds, by node."""
    versions: Counter[int] = field(default_factory=Counter)
    """Spans of the model in the samples, by the version that wrote them."""

    @property
    def version(self) -> int:
        """Version that the round evaluates."""
        (version,) = self.report.versions.values()
        return int(version)

    @property
    def seconds(self) -> float:
        """Duration of the round."""
        assert self.report.finished_at is not None and self.report.started_at is not None
        return self.report.finished_at - self.report.started_at


def settings(engine: Mapping[str, Any], *, nodes: int, steps: int, every_versions: int) -> list[str]:
    """Returns the options of `astraflow run`."""
    values = [
        f"policies.{POLICY}.model={inline_table(MODEL)}",
        f"policies.{POLICY}.model.warm_start.target_accuracy=0.1",  # rewards differ, so that versions do
        f"policies.{POLICY}.batch_groups=8",
        f"nodes.engine={inline_table(engine)}",
        f"nodes.count={nodes}",
        "nodes.capacity=32",
        "nodes.text_share=1",
        f"evaluations.{EVALUATION}.every_versions={every_versions}",
        f"evaluations.{EVALUATION}.prompts={PROMPTS}",
        f"evaluations.{EVALUATION}.samples={SAMPLES}",
        "stop.reward=2",
        f"stop.steps={steps}",
    ]
    return [word for value in values for word in ("--set", value)]


def inline_table(values: Mapping[str, Any]) -> str:
    """Returns the value of a setting."""
    return "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items()) + "}"


async def watch(run: RunningRun, *, nodes: int, rounds: int | None = None) -> list[Observation]:
    """Observes the run until its process ends, or so many rounds have ended, the last with all nodes from its start:
    servers take up to a minute to start, and do not start at the same time."""
    observations: list[Observation] = []
    serving_nodes: dict[int, int] = {}
    while run.process.poll() is None:
        try:
            report = await run.report()
        except Exception:  # the run ends, or has not begun
            if run.process.poll() is not None or observations:
                break
            raise
        observations.append(Observation(servers=count_servers(), report=report))
        if report.completion is not None and not _is_running(report):
            break
        for running_round in _running_rounds(report):
            serving_nodes.setdefault(running_round, sum(bool(node.versions) for node in report.nodes))
        ended = max((part.round for part in report.evaluations if part.state is EvaluationState.DONE), default=0)
        if rounds is not None and ended >= rounds and serving_nodes.get(ended, 0) >= nodes:
            break
        await asyncio.sleep(_WATCH_EVERY_S)
    return observations


def count_servers() -> Counter[int]:
    """Returns the number of servers that each node runs, by its process: those of nodes below this process.

    Each server has a process supervisor, which gets the process id of the node.
    """
    counts: Counter[int] = Counter()
    for process in psutil.Process().children(recursive=True):
        try:
            words = process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if str(supervised.__file__) in words:
            counts[int(words[words.index(str(supervised.__file__)) + 1])] += 1
    del counts[os.getpid()]  # the server of the other party
    return counts


def watched_rounds(observations: Sequence[Observation], directory: Path) -> list[WatchedRound]:
    """Returns the rounds that ended, oldest first, from the observations and the folder of the run."""
    with closing(open_recorded(directory / ARCHIVE_PATH)) as database:
        reports = [part for part in find_rounds(database, before=None, limit=1000) if part.flow == EVALUATION]
        query = TrajectoryQuery(flow=EVALUATION, limit=_PAGE)
        samples: list[SampledTrajectory] = []
        while (page := find_trajectories(database, query)).trajectories:
            samples += page.trajectories
            query = TrajectoryQuery(flow=EVALUATION, limit=_PAGE, before=page.trajectories[-1].ordinal)
    rounds = [WatchedRound(report=report) for report in sorted(reports, key=lambda report: report.round)]
    for sample in samples:
        index = int(sample.group.rpartition(":")[2]) // PROMPTS
        if index < len(rounds):  # the last round may not have ended
            rounds[index].versions.update(int(span.version) for span in sample.spans if span.version is not None)
    for watched in rounds:
        _observe(watched, observations)
    for version, seconds in _held(directory / "logs"):
        for watched in rounds:
            if watched.version == version:
                watched.held_s.append(seconds)
    return rounds


def table(rounds: Sequence[WatchedRound], *, nodes: int) -> str:
    """Formats a line for each round."""
    lines = ["round version     s servers/node reserved  held s  lag of others  steps  samples: versions"]
    for watched in rounds:
        held = " ".join(f"{seconds:.1f}" for seconds in watched.held_s)
        lines.append(
            f"{watched.report.round:5} {watched.version:7} {watched.seconds:5.1f} {watched.servers:12} "
            f"{watched.reserved:4} of {nodes} {held:>7} {watched.lag:14} {watched.steps:6}  "
            f"{watched.report.done - watched.report.masked} of {watched.report.total}: {dict(watched.versions)}"
        )
    return "\n".join([*lines, ""])


def _observe(watched: WatchedRound, observations: Sequence[Observation]) -> None:
    during = [part for part in observations if watched.report.round in _running_rounds(part.report)]
    for part in during:
        (current,) = (each for each in part.report.evaluations if each.state is EvaluationState.RUNNING)
        watched.servers = max([watched.servers, *part.servers.values()])
        if part.report.completion is None:
            watched.reserved = max(watched.reserved, len(current.reserved_nodes))
    for part, released in zip(observations, _just_released(observations), strict=True):
        if watched.report.round in _running_rounds(part.report):
            reserved = {node for each in part.report.evaluations for node in each.reserved_nodes}
            others = [node for node in part.report.nodes if node.id not in reserved | released]
            watched.lag = max([watched.lag, *(max(part.report.lag(node).values(), default=0) for node in others)])
    if during:
        watched.steps = during[-1].report.streams[0].training.steps - during[0].report.streams[0].training.steps


def _just_released(observations: Sequence[Observation]) -> Iterator[set[NodeId]]:
    """Yields for each observation the nodes that still serve the version that an earlier round held: they load the
    newest one now, and count as serving the old one meanwhile."""
    held: dict[NodeId, Mapping[PolicyId, Version]] = {}
    for part in observations:
        reserved = {node for each in part.report.evaluations for node in each.reserved_nodes}
        for node in part.report.nodes:
            if node.id in reserved:
                held[node.id] = node.versions
            elif held.get(node.id) != node.versions:
                held.pop(node.id, None)
        yield held.keys() - reserved


def _running_rounds(report: Report) -> set[int]:
    return {part.round for part in report.evaluations if part.state is EvaluationState.RUNNING}


def _is_running(report: Report) -> bool:
    return bool(_running_rounds(report))


def _held(logs: Path) -> Iterator[tuple[int, float]]:
    """Yields the version and the seconds of each time for which a node held its weights back, from its log."""
    for file in sorted(logs.glob("node-*.log")):
        held: dict[str, Any] | None = None
        for line in file.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "pinned_versions_held":
                held = event
            elif event.get("event") == "pinned_version_released" and held is not None:
                yield int(event["version"]), _at(event) - _at(held)
                held = None


def _at(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def vllm_server() -> ServerEngine:
    """Returns a server of the model that is not started."""
    engine = engines.build({"kind": "vllm", "probe_timeout_s": 120.0}, MODEL)
    assert isinstance(engine, ServerEngine)
    return engine


async def measure(
    kind: str,
    directory: Path,
    *,
    nodes: int = 2,
    steps: int,
    every_versions: int,
    limit_s: float,
    rounds: int | None = None,
) -> list[WatchedRound]:
    """Runs the recipe and returns its rounds. kind: `sglang`, `vllm` or `openai_tokens`, which has a single node.
    rounds: see `watch`; None: the run ends by itself."""
    async with AsyncExitStack() as stack:
        engine: Mapping[str, Any] = {"kind": kind, "probe_timeout_s": 120.0}  # for a busy machine
        other_party = vllm_server() if kind == "openai_tokens" else None
        if other_party is not None:
            await stack.enter_async_context(closed_after(other_party))
            engine, nodes = node_engine(other_party), 1
        words = settings(engine, nodes=nodes, steps=steps, every_versions=every_versions)
        if other_party is not None:  # no version is passed before it is evaluated
            words += ["--set", f"policies.{POLICY}.max_staleness=0"]
        run = await stack.enter_async_context(
            running("reverse", directory, "--no-web", *words, limit_s=limit_s, gone_within_s=120)
        )
        if other_party is not None:
            await stack.enter_async_context(refreshing(other_party, run, PolicyId(POLICY)))
        observations = await watch(run, nodes=nodes, rounds=rounds)
    return watched_rounds(observations, directory)


def main() -> None:
    """Measures one engine and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", default="vllm", choices=("vllm", "sglang", "openai_tokens"))
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every-versions", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=1500)
    options = vars(parser.parse_args())
    kind = options.pop("kind")
    nodes = 1 if kind == "openai_tokens" else options["nodes"]
    with tempfile.TemporaryDirectory() as folder, closing(ForkingPython(Path(folder))) as python:
        sys.executable = python.executable  # a run would import torch four times
        rounds = asyncio.run(measure(kind, Path(folder) / "run", **options))
    sys.stdout.write(f"{kind}, load average {os.getloadavg()[0]:.1f}\n{table(rounds, nodes=nodes)}")


if __name__ == "__main__":
    main()
