"""Ingest of dataflow with and without columns of tokens, in turn.

    python -m benchmarks.dataflow.columns [--tokens 4096] [--top 8] [--nodes 2] [--megabytes 128] [--rounds 3]

The same load as the part `ingest` of `python -m benchmarks.dataflow`, durable, once as it is and once with the most
likely tokens of every generated token (`top_tokens`, `top_logprobs`: 6 bytes each). Medians over the rounds of
sequences a second, megabytes a second, and CPU seconds of dataflow and of all load nodes for a thousand sequences.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks.dataflow.__main__ import SETTLE_S, Case, dataflow, finish, nodes, rate
from benchmarks.dataflow.load import PROMPT_TOKENS

BYTES_OF_TOP = 6
"""Of a token id and its log-probability."""


def ingest(case: Case, *, top: int, megabytes: int) -> Sequence[float]:
    """Returns sequences a second, bytes of a sequence, and CPU seconds of dataflow and nodes for a thousand."""
    size = case.sequence_bytes + BYTES_OF_TOP * top * (case.tokens - PROMPT_TOKENS)
    sequences = max(256, megabytes * 2**20 // size // 256 * 256)
    with dataflow(is_durable=case.is_durable) as running:
        time.sleep(SETTLE_S)
        before = running.cpu_s()
        results = [finish(process) for process in nodes(case, running, sequences, top_tokens=top)]
        cpu_s = running.cpu_s() - before
    node_s = sum(result["cpu_s"] for result in results)
    return rate(results), size, 1000 * cpu_s / sequences, 1000 * node_s / sequences


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    case = Case(tokens=options.tokens, nodes=options.nodes, is_durable=True)
    rounds = [
        [ingest(case, top=top, megabytes=options.megabytes) for top in (0, options.top)] for _ in range(options.rounds)
    ]
    sys.stdout.write(
        "| most likely tokens | sequences/s | MB/s | CPU s / 1000: dataflow | nodes |\n|---|---|---|---|---|\n"
    )
    for top, readings in zip((0, options.top), zip(*rounds, strict=True), strict=True):
        per_s, size, cpu_s, node_s = (statistics.median(values) for values in zip(*readings, strict=True))
        sys.stdout.write(f"| {top} | {per_s:,.0f} | {per_s * size / 1e6:,.0f} | {cpu_s:.3f} | {node_s:.3f} |\n")


if __name__ == "__main__":
    main()
