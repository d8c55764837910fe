"""Fetches over the link, in real processes at both ends."""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.wide_area.link import FAR_ADDRESS, LinkCounts, LinkSpec, RunningLink, running

STORE_PORT, PLAIN_PORT = 7000, 7001
LIMIT_S = 120.0
LONG = LinkSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One link, one fetch method, some sizes."""

    name: str
    spec: LinkSpec = LONG
    by: str = "node"
    """`node`: AstraFlow. `stream`: one default gRPC stream. `plain`: TCP sockets."""
    connections: int = 1
    rounds: int = 6
    sizes_mb: tuple[int, ...] = (64, 256, 512)
    settings: dict[str, str] = field(default_factory=dict)
    outage_s: float = 0.0
    """Seconds of an outage, half a second into the third round of each size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One fetch."""

    size_bytes: int
    all_s: float
    """Seconds from the request for new versions until every byte is verified."""
    fetch_s: float
    """Seconds from the first request to the last byte."""
    verify_s: float = 0.0
    resumes: int = 0

    def floor_s(self, spec: LinkSpec) -> float:
        """Lower bound of any single request: a round trip, and the bytes at the full rate."""
        return 2 * spec.delay_s + 8 * self.size_bytes / spec.bits_per_s

    def share(self, spec: LinkSpec) -> float:
        """Share of the link's rate in the usable time: from a round trip after the request to the last byte."""
        return 8 * self.size_bytes / spec.bits_per_s / (self.fetch_s - 2 * spec.delay_s)


def measure(case: Case) -> tuple[list[Round], LinkCounts]:
    """Measures all rounds of a case, sizes in order, over a new link; the very first round has cold connections."""
    with running(case.spec, settings=case.settings) as link, _server(link, case) as directory:
        rounds = list(_rounds(link, case, directory))
        return rounds, link.end()


def _rounds(link: RunningLink, case: Case, directory: str) -> Iterator[Round]:
    sizes = [str(size_mb) for size_mb in case.sizes_mb]
    if case.by == "plain":
        where = ["plain_tcp", "fetch", FAR_ADDRESS, str(PLAIN_PORT)]
    else:
        where = ["endpoints", case.by, directory, f"{FAR_ADDRESS}:{STORE_PORT}"]
    command = link.in_near(*_python(where[0]), *where[1:], str(case.connections), str(case.rounds), *sizes)
    with _process(command) as process:
        for number, line in enumerate(_json_lines(process)):
            if case.outage_s and number % case.rounds == 1:
                threading.Timer(0.5, link.go_down, (case.outage_s,)).start()
            yield Round(**line)


@contextmanager
def _server(link: RunningLink, case: Case) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        if case.by == "plain":
            command = link.in_far(*_python("plain_tcp"), "serve", FAR_ADDRESS, str(PLAIN_PORT))
        else:
            sizes = [str(size_mb) for size_mb in case.sizes_mb]
            command = link.in_far(*_python("endpoints"), "store", directory, FAR_ADDRESS, str(STORE_PORT), *sizes)
        with _process(command) as process:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "serving\n":
                if not line:
                    raise RuntimeError(f"{case.name}: the far end did not come up")
            yield directory


@contextmanager
def _process(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        ending = threading.Timer(LIMIT_S, process.kill)
        ending.start()
        try:
            yield process
        finally:
            ending.cancel()
            process.terminate()


def _json_lines(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    """Parses the rounds; other lines are logs."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith('{"size_bytes"'):
            yield json.loads(line)


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.wide_area.{module}"]
