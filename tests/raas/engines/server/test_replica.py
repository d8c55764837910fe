"""Tests of what a lost server is reported with."""

from astraflow.raas.engines.server.replica import exit_reason


def test_the_last_error_of_the_log_is_in_the_reason() -> None:
    log = (
        "Traceback (most recent call last):",
        '  File "scheduler.py", line 12, in step',
        "  RuntimeError: out of memory: tried to allocate 8 MB  ",
        "[12:00:01] SIGQUIT received. It usually means one child failed.",
    )
    assert exit_reason(0, log) == "the server exited with code 0 (RuntimeError: out of memory: tried to allocate 8 MB)"


def test_a_log_without_an_error_adds_nothing() -> None:
    assert exit_reason(-9, ("Decode batch, #running-req: 3",)) == "the server exited with code -9"
    assert exit_reason(-9, ()) == "the server exited with code -9"


def test_a_long_error_is_cut() -> None:
    assert len(exit_reason(1, ("ValueError: " + 1000 * "x",))) < 250
