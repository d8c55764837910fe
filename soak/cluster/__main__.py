"""A whole run on two hosts, with PostgreSQL, a bucket, mutual TLS and a mirror, under random faults. Needs root.

    python -m soak.cluster [--minutes 1] [--every 5] [--seed 0] [--json FILE] [--directory FOLDER]

Exits with code 0 only if no invariant was violated, and with 69 where the machine cannot run it. The seed determines
the faults and their times; their effects depend on the machine, so repeat a seed that found a violation.
"""

import argparse
import asyncio
import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from astraflow.runtime.logs import configure
from benchmarks.wide_area.link import LinkSpec, running
from soak.cluster.scenario import LINK_DOWN, ClusterOutcome, soak_cluster
from soak.figures import as_json, figures, table
from tests import tools
from tests.system.processes import ROOT

EXIT_NOT_STARTED = 69
SHOWN = 20
"""Number of violations to print in full."""

LINK = LinkSpec(delay_s=0.01, bits_per_s=1e9)
"""Link of the hosts: 20 ms of round trip, 1 Gbit/s."""


def main(arguments: Sequence[str]) -> int:
    """Runs once; returns the exit code."""
    chosen = _arguments(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if chosen.far:
        return _run(chosen)
    missing = tools.missing(["link", "postgresql"])
    if missing:
        sys.stdout.write(f"cannot run two hosts on this machine: {'; '.join(tools.why(name) for name in missing)}\n")
        return EXIT_NOT_STARTED
    return _on_two_hosts(arguments)


def _on_two_hosts(arguments: Sequence[str]) -> int:
    """Runs this program again inside the first host, and the link beside it."""
    with running(LINK) as link:
        command = link.in_near(sys.executable, "-m", "soak.cluster", *arguments, "--far", link.far)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for line in process.stdout:
                _, prefix, seconds = line.partition(LINK_DOWN)
                if prefix:
                    link.go_down(float(seconds))
                else:
                    sys.stdout.write(line)
                    sys.stdout.flush()
        return process.returncode


def _run(chosen: argparse.Namespace) -> int:
    configure(level="ERROR")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="cluster-"))
    began = time.monotonic()

    def say(what: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {what}\n")
        sys.stdout.flush()

    say(f"seed {chosen.seed}; logs and state in {directory}")
    outcome = asyncio.run(
        soak_cluster(
            chosen.seed,
            seconds=60 * chosen.minutes,
            every_s=chosen.every,
            directory=directory,
            far=chosen.far,
            say=say,
        )
    )
    _show(outcome, chosen)
    problems = outcome.run.violations
    for problem in problems[:SHOWN]:
        sys.stdout.write(f"BROKEN  {problem}\n")
    return 1 if problems else 0


def _show(outcome: ClusterOutcome, chosen: argparse.Namespace) -> None:
    run_figures, outages = figures(outcome.run, seed=chosen.seed), outcome.run.fault_counts.outages
    lines = [
        ("page", f"{outcome.acknowledged} changes acknowledged, {outcome.retries} requests repeated"),
        ("restarts", ", ".join(f"{count} {name}" for name, count in outages.items()) or "none for an outage"),
        ("from the store", ", ".join(f"{size} B {caller}" for caller, size in outcome.fetched_bytes.items())),
        ("far nodes", str(outcome.mirrored)),
    ]
    sys.stdout.write(table(run_figures) + "\n" + "\n".join(f"{name:18}  {value}" for name, value in lines) + "\n")
    if chosen.json is not None:
        own = {name: getattr(outcome, name) for name in ("acknowledged", "retries", "fetched_bytes", "mirrored")}
        violations = [str(violation) for violation in outcome.run.violations]
        result = {**as_json(run_figures), **own, "outages": dict(outages), "violations": violations}
        chosen.json.write_text(json.dumps(result, indent=2) + "\n")


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults are injected")
    parser.add_argument("--every", type=float, default=5.0, help="mean number of seconds between two faults")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures there")
    parser.add_argument("--directory", type=Path, default=None, help="for logs and state; a new one by default")
    parser.add_argument("--far", default="", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
