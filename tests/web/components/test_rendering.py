"""Texts of reports become HTML without markup of their own."""

from pathlib import Path

from astraflow.contract.records import Record, problem_record
from tests.fakes.clock import ManualClock
from web.components.rendering import PageRenderer
from web.process_settings import Settings
from web.state.fleet_state import FleetState
from web.state.run_state import RunState


def banner(problem: Record) -> str:
    """Returns the banner of a run with this problem."""

    clock = ManualClock()
    pages = PageRenderer(
        Settings(directory=Path()), RunState(clock), FleetState(clock, is_absent=True), name=str, alerts=int
    )
    return pages.fragment("_problems.html", problems=(problem,))


def test_a_problem_links_to_the_trajectories_that_show_it() -> None:
    html = banner(problem_record("filtered", "solver", outcomes="58 `informative`", outcome="informative"))
    assert '<a href="/trajectories?outcome=informative">the trajectories</a>.' in html
    assert "<code>informative</code>" in html


def test_errors_in_a_problem_are_escaped_and_link_nowhere_else() -> None:
    error = "<script>alert(1)</script> see /trajectories?outcome=<b> or https://example.com/trajectories?a=b"
    html = banner(problem_record("journal", "", error=error, outcome='"><b>'))
    assert "<script>" not in html
    assert "<b>" not in html
    assert "example.com/trajectories?a=b" in html
    assert 'href="https' not in html
