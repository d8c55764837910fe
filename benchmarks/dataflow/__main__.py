"""Throughput of dataflow against a bare gRPC stream of the same bytes: ingest, serving, end to end, and latency.

    python -m benchmarks.dataflow [--tokens 512 4096] [--nodes 1 2 8] [--megabytes 256] [--json FILE]

Every part is a process of its own over loopback: `astraflow serve dataflow`, load nodes and a load trainer (see `load`;
they call the planes through AstraFlow's clients and generate nothing). Groups of eight; durable has the same meaning as
in a run: a push is answered when it is on disk. For each length and number of nodes, in this order:

- bare: the bytes of the sequences over plain gRPC streams, as many senders as nodes
- ingest: nodes lease and push, without a trainer
- serving: one trainer pulls and acknowledges the ingested groups
- end to end: both at once
- latency: both at once, at half of the end to end rate, with a gate that is open, after a second of warm-up

Sequences a second, and their share of the bare stream. The published system, measured on a machine of this kind,
ingested 2,211 sequences a second at 512 tokens, 1,704 at 4,096, and served 163.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.dataflow.load import PROMPT_TOKENS, Job

RECIPE = Path(__file__).parent / "recipe.toml"
TOKEN = "token-of-the-benchmark"
ORIGINAL = {512: 2211.0, 4096: 1704.0}
"""Sequences a second that the published system ingested, by length."""
ORIGINAL_SERVING = 163.0
BATCH = 32 * 8
WARM_UP_S = 1.0
"""Start of a measurement of latency whose calls are left out."""
LATENCY_S = 20.0
"""About 37 pushes a second with one node at 4,096 tokens."""
SETTLE_S = 1.0
"""Pause after the start of dataflow, whose last imports and first reports are no part of ingest."""
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table."""

    tokens: int
    nodes: int
    is_durable: bool
    top_tokens: int = 0
    """Most likely tokens that are recorded with their log-probabilities for each generated token; 0: none."""

    @property
    def sequence_bytes(self) -> int:
        """Returns the bytes of a sequence: token ids of all tokens, log-probabilities and columns of the generated."""
        return 4 * self.tokens + (4 + 6 * self.top_tokens) * (self.tokens - PROMPT_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Figures of a case: sequences a second, milliseconds, CPU seconds of dataflow for a thousand sequences."""

    case: Case
    bare: float
    ingest: float
    serving: float
    both: float
    lease_p50: float
    lease_p99: float
    push_p50: float
    push_p99: float
    ingest_cpu: float
    peak_mb: float


class Dataflow:
    """A dataflow process."""

    def __init__(
        self,
        directory: Path,
        *,
        is_durable: bool,
        staleness: int = 10**6,
        program: str = "astraflow.cli",
        settings: Sequence[str] = (),
    ) -> None:
        """program: module that is run as `astraflow`. settings: further ones, as `--set` takes them."""
        (directory / "token").write_text(TOKEN)
        self.version_file = directory / "version"
        self.version_file.write_bytes(bytes(8))
        options = [f"policies.solver.max_staleness={staleness}", *settings]
        if not is_durable:
            options.append('dataflow.durability="none"')
        sets = [part for option in options for part in ("--set", option)]
        self._log = (directory / "log").open("w")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", program, "serve", "dataflow", str(RECIPE)),
                *("--weights", "127.0.0.1:1", "--directory", str(directory / "dataflow")),
                *("--token-file", str(directory / "token"), *sets),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self._watched = psutil.Process(self.process.pid)

    def cpu_s(self) -> float:
        """Returns the CPU seconds so far."""
        times = self._watched.cpu_times()
        return times.user + times.system

    def memory_mb(self) -> float:
        """Returns the resident memory."""
        return self._watched.memory_info().rss / 2**20

    def peak_mb(self) -> float:
        """Returns the largest resident memory so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def close(self) -> None:
        """Ends the process."""
        self.process.terminate()
        self.process.wait(60)
        self._log.close()


@contextmanager
def dataflow(*, is_durable: bool, staleness: int = 10**6) -> Iterator[Dataflow]:
    """Starts a new dataflow on an empty directory."""
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as directory:
        running = Dataflow(Path(directory), is_durable=is_durable, staleness=staleness)
        try:
            yield running
        finally:
            running.close()


def start(job: Job) -> "subprocess.Popen[str]":
    """Starts a load process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.dataflow.load", json.dumps(asdict(job))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(TOKEN + "\n")
    process.stdin.flush()
    return process


def finish(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Waits for a load process and returns its figures."""
    out, _ = process.communicate(timeout=TIMEOUT_S)
    if process.returncode:
        raise SystemExit(f"a load process failed with code {process.returncode}")
    return json.loads(out)  # type: ignore[no-any-return]  # JSON


def rate(figures: Sequence[dict[str, Any]]) -> float:
    """Returns sequences a second of several processes, from the first start to the last end."""
    took_s: float = max(figure["ended_at"] for figure in figures) - min(figure["began_at"] for figure in figures)
    return float(sum(figure["sequences"] for figure in figures) / took_s)


def bare(case: Case, sequences: int) -> float:
    """Returns sequences a second as bytes over plain streams."""
    module = [sys.executable, "-m", "benchmarks.dataflow.plain_grpc"]
    with ExitStack() as stack:
        server = subprocess.Popen([*module, "serve"], stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait, 30)
        stack.callback(server.terminate)
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        each = sequences * case.sequence_bytes // case.nodes
        senders = [
            subprocess.Popen([*module, "send", address, str(each)], stdout=subprocess.PIPE, text=True)
            for _ in range(case.nodes)
        ]
        results = [finish(sender) for sender in senders]
    took_s: float = max(sender["ended_at"] for sender in results) - min(sender["began_at"] for sender in results)
    return float(sum(sender["bytes"] for sender in results) / case.sequence_bytes / took_s)


def nodes(case: Case, running: Dataflow, sequences: int, **more: Any) -> "list[subprocess.Popen[str]]":
    """Returns load nodes that share the work."""
    return [
        start(
            Job(
                role="node",
                address=running.address,
                name=f"load-{number}",
                sequences=sequences // case.nodes,
                tokens=case.tokens,
                top_tokens=case.top_tokens,
                version_file=str(running.version_file),
                **more,
            )
        )
        for number in range(case.nodes)
    ]


def trainer_job(running: Dataflow, sequences: int) -> Job:
    """Returns the job of a load trainer."""
    version_file = str(running.version_file)
    return Job(role="trainer", address=running.address, sequences=sequences, version_file=version_file)


def ingest_and_serve(case: Case, sequences: int) -> tuple[float, float, float, float]:
    """Returns rates of ingest and serving, CPU seconds per thousand ingested sequences, and peak memory."""
    with dataflow(is_durable=case.is_durable) as running:
        time.sleep(SETTLE_S)
        before = running.cpu_s()
        ingest = rate([finish(process) for process in nodes(case, running, sequences)])
        cpu_s = running.cpu_s() - before
        served = sequences // BATCH * BATCH
        serving = rate([finish(start(trainer_job(running, served)))])
        return ingest, serving, 1000 * cpu_s / sequences, running.peak_mb()


def end_to_end(case: Case, sequences: int) -> float:
    """Returns sequences a second from lease to acknowledgement, while the trainer works."""
    with dataflow(is_durable=case.is_durable, staleness=8) as running:
        trained = sequences // BATCH * BATCH
        trainer = start(trainer_job(running, trained))
        pushing = nodes(case, running, sequences + 64 * BATCH)
        figures = finish(trainer)
        for process in pushing:
            process.terminate()
            process.communicate()
        return float(trained / (figures["ended_at"] - figures["began_at"]))


def latency(case: Case, both: float) -> list[float]:
    """Returns milliseconds of lease and push, median and 99th percentile each, at half of the end to end rate."""
    sequences = int(both / 2 * (WARM_UP_S + LATENCY_S))
    with dataflow(is_durable=case.is_durable) as running:  # an open gate: waiting for a trainer is not latency
        trainer = start(trainer_job(running, sequences // BATCH * BATCH))
        pushing = nodes(case, running, sequences, per_push=64, rate=both / 2 / case.nodes, warm_up_s=WARM_UP_S)
        figures = [finish(process) for process in pushing]
        trainer.terminate()
        trainer.communicate()
    quantiles = []
    for key in ("lease_ms", "push_ms"):
        values = sorted(value for figure in figures for value in figure[key])
        quantiles += [statistics.median(values), values[int(0.99 * (len(values) - 1))]]
    return quantiles


def measure(case: Case, megabytes: int) -> Result:
    """Measures a case."""
    sequences = megabytes * 2**20 // case.sequence_bytes // (64 * case.nodes) * 64 * case.nodes
    floor = bare(case, sequences)
    ingest, serving, cpu, peak = ingest_and_serve(case, sequences)
    both = end_to_end(case, sequences)
    lease_p50, lease_p99, push_p50, push_p99 = latency(case, both)
    return Result(
        case=case,
        bare=floor,
        ingest=ingest,
        serving=serving,
        both=both,
        lease_p50=lease_p50,
        lease_p99=lease_p99,
        push_p50=push_p50,
        push_p99=push_p99,
        ingest_cpu=cpu,
        peak_mb=peak,
    )


HEAD = (
    "| tokens | nodes | durable | bare/s | ingest/s | of bare | of original | serving/s | of original | end to end/s "
    "| lease ms p50 / p99 | push ms p50 / p99 | CPU s / 1000 | peak MB |\n" + "|---" * 14 + "|"
)


def row(result: Result) -> str:
    """Formats a line of the table."""
    case = result.case
    original = ORIGINAL.get(case.tokens)
    cells = [
        str(case.tokens),
        str(case.nodes),
        "yes" if case.is_durable else "no",
        f"{result.bare:,.0f}",
        f"{result.ingest:,.0f}",
        f"{result.ingest / result.bare:.0%}",
        f"{result.ingest / original:.1f} x" if original else "",
        f"{result.serving:,.0f}",
        f"{result.serving / ORIGINAL_SERVING:.0f} x",
        f"{result.both:,.0f}",
        f"{result.lease_p50:.1f} / {result.lease_p99:.1f}",
        f"{result.push_p50:.1f} / {result.push_p99:.1f}",
        f"{result.ingest_cpu:.3f}",
        f"{result.peak_mb:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--durable", choices=["yes", "no", "both"], default="both")
    parser.add_argument("--megabytes", type=int, default=256, help="of sequences, for each measurement")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    durable = {"yes": [True], "no": [False], "both": [True, False]}[options.durable]
    cases = [
        Case(tokens=tokens, nodes=count, is_durable=is_durable)
        for tokens in options.tokens
        for is_durable in durable
        for count in options.nodes
    ]
    load = os.getloadavg()[0]
    sys.stdout.write(f"{os.cpu_count()} cores, load {load:.1f}, {time.strftime('%Y-%m-%d')}\n{HEAD}\n")
    results = []
    for case in cases:
        results.append(measure(case, options.megabytes))
        sys.stdout.write(row(results[-1]) + "\n")
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
