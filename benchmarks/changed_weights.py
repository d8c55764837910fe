"""Weights that a step changes, and bytes of a version, at several learning rates.

    python -m benchmarks.changed_weights [--recipe smollm] [--rates 1e-6 5e-6 1e-5] [--steps 50] [--limit-s 900]
                                               [--set SETTING ...] [--json FILE]

Each run is `astraflow run RECIPE --headless` at one learning rate, for a number of steps, without shared memory, so
that versions are sent as to another host. The first version, a snapshot, does not count. Other work on the
machine changes the seconds, not the figures of this table. Checkpoints go to the folder for temporary files:
TMPDIR=/dev/shm keeps a slow disk out of the way.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from astraflow.archive.reports import read_reports
from astraflow.contract.weight_reports import VersionReport
from astraflow.recipe.loading import load_recipe
from benchmarks.recipe_curves import finished_run

HEAD = "{:>8} {:>6} {:>17} {:>8} {:>8} {:>8} {:>8}\n"
ROW = "{:>8.0e} {:>6} {:>17.4f} {:>8.4f} {:>8.4f} {:>8.2f} {:>8.1f}\n"


def main() -> None:
    """Prints a row for each learning rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="smollm", help="with one policy")
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-6, 5e-6, 1e-5])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--limit-s", type=float, default=900.0)
    parser.add_argument("--set", action="append", default=[], metavar="SETTING", dest="settings")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    (policy,) = load_recipe(options.recipe, options.settings).policies
    sys.stdout.write(HEAD.format("rate", "steps", "unchanged, median", "least", "most", "MB sent", "MB full"))
    by_rate: dict[float, list[dict[str, float]]] = {}
    for rate in options.rates:
        settings = [f"policies.{policy}.backend.learning_rate={rate}", f"stop.steps={options.steps}"]
        settings += ["trainer.publish.is_shared=false", "nodes.pull.use_shared_memory=false"]
        with finished_run(options.recipe, [*options.settings, *settings], limit_s=options.limit_s) as (_, archive):
            versions = deltas_of(archive)
        by_rate[rate] = [version.metrics() for version in versions]
        sys.stdout.write(row(rate, versions))
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(by_rate))


def deltas_of(archive: Path) -> list[VersionReport]:
    """Returns the versions of a run whose difference from the previous one is known, oldest first."""
    versions = {
        version.version: version
        for resolution_s in (60, 1)
        for report in read_reports(archive, resolution_s=resolution_s)
        for weights in report.weights
        for version in weights.versions
    }
    return [versions[number] for number in sorted(versions) if versions[number].elements]


def row(rate: float, versions: Sequence[VersionReport]) -> str:
    """Formats the line of a learning rate."""
    unchanged = [1.0 - (version.changed_share or 0.0) for version in versions]
    if not unchanged:
        return f"{rate:>8.0e} no version has a known difference\n"
    sent = statistics.median(version.sent_bytes for version in versions)
    shares = statistics.median(unchanged), min(unchanged), max(unchanged)
    return ROW.format(rate, len(versions), *shares, sent / 1e6, versions[-1].full_bytes / 1e6)


if __name__ == "__main__":
    main()
