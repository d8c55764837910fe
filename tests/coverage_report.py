"""Coverage of lines and branches by package, from coverage's JSON report.

make coverage                                        # runs the tests of `make test`, then prints the table
python -m tests.coverage_report build/coverage.json  # prints the table of an earlier run
"""

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple


class Counts(NamedTuple):
    """Counts of a package; branches are pairs of lines of which one may follow the other."""

    lines: int
    covered_lines: int
    branches: int
    covered_branches: int

    @property
    def percent(self) -> float:
        """Covered lines and branches, in per cent of all; 100 without any."""
        every = self.lines + self.branches
        return 100 * (self.covered_lines + self.covered_branches) / every if every else 100.0


def by_package(report: Mapping[str, Any]) -> dict[str, Counts]:
    """Returns the counts of each package, such as `astraflow/wire`, and of all together as `total`, by name."""
    files: dict[str, list[Mapping[str, int]]] = defaultdict(list)
    for name, file in report["files"].items():
        files["/".join(PurePosixPath(name).parent.parts[:2])].append(file["summary"])
    files = dict(sorted(files.items())) | {"total": [report["totals"]]}
    keys = ("num_statements", "covered_lines", "num_branches", "covered_branches")
    return {
        package: Counts(*(sum(summary[key] for summary in summaries) for key in keys))
        for package, summaries in files.items()
    }


def main(arguments: Sequence[str]) -> int:
    """Prints the table."""
    packages = by_package(json.loads(Path(arguments[0]).read_text()))
    lines = [f"{'package':28} {'lines':>8} {'branches':>9} {'covered':>9}"]
    for package, counts in packages.items():
        lines.append(f"{package:28} {counts.lines:8,} {counts.branches:9,} {counts.percent:7.1f} %")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
