import pytest

from astraflow.raas.counters import NodeCounters


def test_unknown_counters_and_gauges_are_refused() -> None:
    counters = NodeCounters()
    counters.add("episodes_done")
    counters.add("tokens_generated", 12)

    assert (counters.counters()["episodes_done"], counters.counters()["tokens_generated"]) == (1, 12)
    with pytest.raises(KeyError):
        counters.add("episodes_dnoe")
    with pytest.raises(KeyError):
        counters.set_gauge("mood", 1.0)


def test_after_a_rejoin_only_unreported_counts_remain() -> None:
    counters = NodeCounters()
    counters.add("episodes_done", 5)
    counters.mark_reported(counters.counters())
    counters.add("episodes_done", 2)

    counters.reset_baseline()
    assert counters.counters()["episodes_done"] == 2
    counters.mark_reported(counters.counters())
    counters.reset_baseline()
    counters.add("episodes_done", 3)

    assert counters.counters()["episodes_done"] == 3


def test_the_token_rate_covers_the_last_ten_seconds() -> None:
    counters = NodeCounters()
    for second in range(20):
        counters.observe_rate(float(second))
        counters.add("tokens_generated", 100 if second < 10 else 10)
    counters.observe_rate(20.0)

    assert counters.gauges()["tokens_per_s"] == pytest.approx(10)


def test_the_latest_errors_are_kept_once_each() -> None:
    counters = NodeCounters()

    is_new = [counters.note_error(f"error {number}") for number in (*range(9), 8, 0)]

    assert is_new == [True] * 9 + [False, True]
    assert len(counters.errors()) == 8
    assert counters.errors()[-1] == "error 0"
