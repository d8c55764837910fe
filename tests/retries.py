"""A second attempt for selected tests of real processes, and a count of tests that passed on it.

`@pytest.mark.retry_once("why it may fail on a busy machine")` selects them, each with its reason; at most `MOST`, and
only tests that are `slow` as well. Every other test has one attempt.
"""

import pytest
from _pytest.runner import runtestprotocol

MOST = 6
"""Limit of marked test functions. Exceeding it points to a problem of the tests or the system."""

CATEGORY = "passed on a second try"
_SECOND = "second_try"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses a marker that breaks its rules. Raises: pytest.UsageError."""
    marked: set[str] = set()
    for item in items:
        marker = item.get_closest_marker("retry_once")
        if marker is None:
            continue
        marked.add(item.nodeid.partition("[")[0])
        if not (marker.args and str(marker.args[0]).strip()) or item.get_closest_marker("slow") is None:
            raise pytest.UsageError(
                f"cannot try {item.nodeid} twice: retry_once takes a reason and is for `slow` tests; mend the test"
            )
    if len(marked) > MOST:
        raise pytest.UsageError(f"cannot try {len(marked)} tests twice: {MOST} are the limit; mend some of them")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs a marked test again, once, when it failed."""
    if item.get_closest_marker("retry_once") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed for report in reports):
        first = "\n".join(report.longreprtext for report in reports if report.failed)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            report.sections.append(("first try", first))
        if all(report.passed for report in reports):
            reports[-1].user_properties.append((_SECOND, first))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """Counts a second attempt in pytest's closing line, besides the test itself."""
    is_second = isinstance(report, pytest.TestReport) and report.when == "teardown"
    if is_second and any(name == _SECOND for name, _ in report.user_properties):
        return CATEGORY, "", ""
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the tests that passed on their second attempt, with the first failure."""
    for report in terminalreporter.stats.get(CATEGORY, []):
        terminalreporter.section(f"{CATEGORY}: {report.nodeid}", sep="-")
        terminalreporter.line(dict(report.user_properties)[_SECOND])
