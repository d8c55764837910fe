import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import Version
from astraflow.raas.engines.timeline import Timeline, TokenSchedule
from tests.fakes.clock import ManualClock

seconds = st.floats(0, 100, allow_nan=False)


@given(
    began_at=seconds,
    first_token_s=seconds,
    tokens=st.integers(1, 50),
    tokens_per_s=st.sampled_from([0.0, 0.3, 7.0, 1e4]),
    times=st.lists(seconds, max_size=10),
)
def test_the_token_count_increases_to_the_total(
    began_at: float, first_token_s: float, tokens: int, tokens_per_s: float, times: list[float]
) -> None:
    schedule = TokenSchedule(began_at=began_at, first_token_s=first_token_s, tokens=tokens, tokens_per_s=tokens_per_s)

    counts = [schedule.tokens_at(time) for time in sorted([*times, schedule.ends_at])]

    assert counts == sorted(counts)
    assert all(0 <= count <= tokens for count in counts)
    assert schedule.tokens_at(schedule.ends_at) == tokens
    assert schedule.tokens_at(began_at - 1) == 0


@pytest.mark.long
@given(
    st.lists(
        st.tuples(st.sampled_from(["pass", "stop", "start", "load", "slow", "fast"]), st.floats(0, 1)), max_size=30
    )
)
def test_spans_cover_all_tokens_with_increasing_versions(steps: list[tuple[str, float]]) -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    timeline.load(Version(0))
    schedule = TokenSchedule(began_at=timeline.now(), first_token_s=0.5, tokens=40, tokens_per_s=8.0)
    version = 0

    for step, duration_s in steps:
        match step:
            case "pass":
                clock.advance(duration_s)
            case "stop":
                timeline.stop()
            case "start":
                timeline.start()
            case "load":
                version += 1
                timeline.load(Version(version))
            case "slow":
                timeline.set_speed(0.1)
            case "fast":
                timeline.set_speed(1.0)
        spans = timeline.spans(schedule, until=timeline.now())
        assert sum(span.length for span in spans) == schedule.tokens_at(timeline.now())
        assert [span.version for span in spans] == sorted({span.version for span in spans})
        assert all(span.length > 0 and span.version <= version for span in spans)


def test_half_the_speed_doubles_all_durations() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    clock.advance(1.0)
    timeline.set_speed(0.5)
    clock.advance(2.0)
    timeline.stop()
    timeline.set_speed(1.0)
    clock.advance(60.0)
    timeline.start()
    clock.advance(0.25)
    assert timeline.now() == 1.0 + 0.5 * 2.0 + 0.25
    timeline.set_speed(0.5)
    assert timeline.clock_seconds_for(3.0) == 6.0
