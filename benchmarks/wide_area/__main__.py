"""Share of a long link that a fetch uses, and throughput of three pools of which two are far.

    python -m benchmarks.wide_area [--only WORD ...] [--json FILE]
    python -m benchmarks.wide_area --pools [--svg FOLDER] [--json FILE]

Needs root and /dev/net/tun. The link is `benchmarks/wide_area/link.py`: 300 ms, 4 Gbit/s, packets of 1,500 bytes,
a queue of one round trip. A store and a node run in processes of their own at its two ends; the node fetches versions
of 64, 256 and 512 MB in full, each some times over the same connections. Takes six minutes.

`share` is that of the link's rate from a round trip after the request to the last byte; `of floor` compares the whole
fetch with a round trip and the bytes at the full rate. `cold` is the very first fetch, over new connections.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from astraflow.runtime.plot import Curve, line_plot
from benchmarks.wide_area import pools
from benchmarks.wide_area.fetches import LONG, Case, Round, measure
from benchmarks.wide_area.link import UNTUNED, LinkCounts, reason_against, running

BBR = {"net.ipv4.tcp_congestion_control": "bbr"}
RENO = {"net.ipv4.tcp_congestion_control": "reno"}
CASES = (
    Case(name="tuned, 1 connection", settings=BBR),
    Case(name="tuned, 8 connections", settings=BBR, connections=8),
    Case(name="plain TCP, 1 connection", settings=BBR, by="plain"),
    Case(name="plain TCP, 8 connections", settings=BBR, by="plain", connections=8),
    Case(name="default gRPC stream", settings=BBR, by="stream"),
    Case(name="reno, 1 connection", settings=RENO),
    Case(name="deep queue, 1 connection", settings=BBR, spec=replace(LONG, queue_s=9.0)),
    Case(name="deep queue, 8 connections", settings=BBR, spec=replace(LONG, queue_s=9.0), connections=8),
    Case(name="buffers as installed, 1", settings={**BBR, **UNTUNED}, sizes_mb=(64,), rounds=3),
    Case(name="buffers as installed, 8", settings={**BBR, **UNTUNED}, connections=8, sizes_mb=(64, 256), rounds=3),
    Case(name="buffers as installed, 32", settings={**BBR, **UNTUNED}, connections=32, sizes_mb=(64, 256), rounds=3),
    Case(name="loss 1 in 10,000 bursts", settings=BBR, spec=replace(LONG, loss=1e-4)),
    Case(name="loss 1 in 1,000 bursts", settings=BBR, spec=replace(LONG, loss=1e-3)),
    Case(name="jitter of 20 ms", settings=BBR, spec=replace(LONG, jitter_s=0.02)),
    Case(name="outage of 3 s in round 3", settings=BBR, outage_s=3.0, sizes_mb=(256,)),
)


def main() -> None:
    """Measures case by case, prints a table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--pools", action="store_true")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if reason := reason_against():
        sys.exit(f"no link can be made: {reason}")
    results = _pools(arguments.svg) if arguments.pools else _fetches(arguments.only)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def _fetches(only: Sequence[str]) -> dict[str, Any]:
    sys.stdout.write(f"{'':28} {'MB':>4} {'cold s':>7} {'warm s':>14} {'share':>7} {'of floor':>9} {'dropped':>8}\n")
    results: dict[str, Any] = {}
    for case in CASES:
        if not only or any(word in case.name for word in only):
            rounds, counts = measure(case)
            sys.stdout.write(table(case, rounds, counts))
            sys.stdout.flush()
            results[case.name] = {"rounds": [asdict(round_) for round_ in rounds], "link": asdict(counts)}
    return results


def _pools(folder: Path | None) -> dict[str, Any]:
    outcomes = {}
    for name, is_remote in (("two far", True), ("all near", False)):
        with running(LONG, settings=BBR) as link:
            outcomes[name] = pools.measure(link, is_remote=is_remote)
        sys.stdout.write(pools_table(name, outcomes[name]))
        sys.stdout.flush()
    if folder:
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "pools_production.svg").write_text(production(outcomes["two far"]))
        (folder / "pools_transfers.svg").write_text(transfers(outcomes["two far"]))
    return {name: asdict(outcome) for name, outcome in outcomes.items()}


def pools_table(name: str, outcome: pools.Outcome) -> str:
    """Formats a line per pool."""
    lines = [f"{name}: the trainer waited {outcome.wait:.1%} of its time, {len(outcome.steps) - 1} steps"]
    for pool in pools.SPEEDS:
        episodes, seconds = outcome.made(pool), [fetch.seconds for fetch in outcome.fetches if fetch.pool == pool]
        behind = [fetch.behind for fetch in outcome.fetches if fetch.pool == pool]
        lines.append(
            f"  {pool:10} episodes a step {statistics.mean(episodes):6.1f} (least {min(episodes):.0f})  fetch s"
            f" {statistics.median(seconds):.2f} (most {max(seconds):.2f}), {len(seconds)} versions,"
            f" behind by {max(behind)} at most"
        )
    return "".join(f"{line}\n" for line in lines)


def production(outcome: pools.Outcome) -> str:
    """Returns episodes of each pool, step by step."""
    curves = [
        Curve(
            name=pool,
            points=tuple((float(step), episodes) for step, episodes in enumerate(outcome.made(pool), start=1)),
        )
        for pool in pools.SPEEDS
    ]
    return line_plot(curves, x_label="step of the trainer", y_label="episodes a step")


def transfers(outcome: pools.Outcome) -> str:
    """Returns seconds of each fetch, by version."""
    curves = [
        Curve(
            name=pool,
            points=tuple((float(fetch.version), fetch.seconds) for fetch in outcome.fetches if fetch.pool == pool),
        )
        for pool in pools.SPEEDS
    ]
    return line_plot(curves, x_label="version", y_label="seconds of a fetch")


def table(case: Case, rounds: Sequence[Round], counts: LinkCounts) -> str:
    """Formats a line for each size: the median of the warm rounds, and their spread."""
    lines = []
    for number, size_mb in enumerate(case.sizes_mb):
        all_rounds = rounds[number * case.rounds : (number + 1) * case.rounds]
        warm = all_rounds[1:]
        seconds = sorted(node.fetch_s for node in warm)
        share = statistics.median(node.share(case.spec) for node in warm)
        of_floor = statistics.median(node.floor_s(case.spec) / node.fetch_s for node in warm)
        cold = f"{all_rounds[0].fetch_s:.2f}" if number == 0 else ""
        spread = f"{statistics.median(seconds):.2f} ({seconds[0]:.2f}-{seconds[-1]:.2f})"
        lines.append(
            f"{case.name if number == 0 else '':28} {size_mb:4} {cold:>7} {spread:>17} {share:7.0%} {of_floor:9.0%}"
            f" {counts.lost + counts.overflowed + counts.in_outages if number == 0 else '':>8}\n"
        )
    return "".join(lines)


if __name__ == "__main__":
    main()
