"""Ingest of dataflow with and without columns of tokens, in turn.

    python -m benchmarks.dataflow.columns [--tokens 4096] [--top 8] [--nodes 2] [--megabytes 128] [--rounds 3]

The parts `bare` and `ingest` of `python -m benchmarks.dataflow`, durable, once without columns and once with the most
likely tokens of every generated token (`top_tokens`, `top_logprobs`: 6 bytes each). Medians over the rounds of
sequences a second over a plain stream and into dataflow, megabytes a second into dataflow, and CPU seconds of dataflow
and of all load nodes for a thousand sequences.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks.dataflow.__main__ import SETTLE_S, Case, bare, dataflow, finish, nodes, rate


def measure(case: Case, megabytes: int) -> Sequence[float]:
    """Returns sequences a second over a plain stream and into dataflow, and CPU seconds of dataflow and nodes for a
    thousand."""
    sequences = max(256, megabytes * 2**20 // case.sequence_bytes // 256 * 256)
    floor = bare(case, sequences)
    with dataflow(is_durable=case.is_durable) as running:
        time.sleep(SETTLE_S)
        before = running.cpu_s()
        results = [finish(process) for process in nodes(case, running, sequences)]
        cpu_s = running.cpu_s() - before
    node_s = sum(result["cpu_s"] for result in results)
    return floor, rate(results), 1000 * cpu_s / sequences, 1000 * node_s / sequences


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cases = [
        Case(tokens=options.tokens, nodes=options.nodes, is_durable=True, top_tokens=top) for top in (0, options.top)
    ]
    rounds = [[measure(case, options.megabytes) for case in cases] for _ in range(options.rounds)]
    sys.stdout.write(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}\n")
    sys.stdout.write("| most likely tokens | KB | bare/s | ingest/s | MB/s | CPU s / 1000: dataflow | nodes |\n")
    sys.stdout.write("|---" * 7 + "|\n")
    for case, readings in zip(cases, zip(*rounds, strict=True), strict=True):
        floor, per_s, cpu_s, node_s = (statistics.median(values) for values in zip(*readings, strict=True))
        size = case.sequence_bytes / 1000
        cells = [f"{case.top_tokens}", f"{size:.0f}", f"{floor:,.0f}", f"{per_s:,.0f}", f"{per_s * size / 1000:,.0f}"]
        sys.stdout.write(f"| {' | '.join(cells)} | {cpu_s:.3f} | {node_s:.3f} |\n")


if __name__ == "__main__":
    main()
