"""The report of coverage by package: counts of files add up, whatever their depth."""

import pytest

from tests.coverage_report import Counts, by_package


def file(lines: int, covered: int, branches: int, covered_branches: int) -> dict[str, dict[str, int]]:
    return {
        "summary": {
            "num_statements": lines,
            "covered_lines": covered,
            "num_branches": branches,
            "covered_branches": covered_branches,
        }
    }


def test_packages_have_the_sums_of_their_files() -> None:
    files = {
        "web/app.py": file(10, 9, 2, 1),
        "astraflow/wire/channel.py": file(20, 20, 4, 4),
        "astraflow/wire/codecs/data.py": file(30, 15, 6, 1),
        "astraflow/py.py": file(0, 0, 0, 0),
    }
    totals = file(60, 44, 12, 6)["summary"]

    packages = by_package({"files": files, "totals": totals})

    assert list(packages) == ["astraflow", "astraflow/wire", "web", "total"]
    assert packages["astraflow/wire"] == Counts(50, 35, 10, 5)
    assert packages["astraflow/wire"].percent == pytest.approx(100 * 40 / 60)
    assert packages["astraflow"].percent == 100.0
    assert packages["total"] == Counts(60, 44, 12, 6)
