"""Phases of a start, from the log of the run's supervisor."""

from datetime import UTC, datetime

from web.launches.progress import PhaseState, has_started, phases, start_duration_s


def log(*events: tuple[float, str]) -> str:
    """Returns a log with events at seconds since 1970."""
    return "".join(f"{datetime.fromtimestamp(at, UTC).isoformat()} {text}\n" for at, text in events)


STARTING = ((11, "weights started"), (12, "dataflow started"), (14, "weights ready 127.0.0.1:1"))
READY = (
    *STARTING,
    (15, "dataflow ready 127.0.0.1:2"),
    (15, "prepare started"),
    (16, "node-1 started"),
    (16, "node-2 started"),
    (18, "node-1 ready"),
)


def shown(
    events: tuple[tuple[float, str], ...], *, end: PhaseState | None = None
) -> list[tuple[str, str, float | None]]:
    return [
        (phase.title, phase.state.value, phase.duration_s)
        for phase in phases(log(*events), launched_at=10, now=20, end=end)
    ]


def test_nothing_but_the_process_is_active_before_the_first_event() -> None:
    assert shown(()) == [
        ("Process", "active", 10.0),
        ("Weight store", "waiting", None),
        ("Dataflow", "waiting", None),
        ("Trainer", "waiting", None),
        ("First step", "waiting", None),
    ]


def test_each_phase_has_its_time_and_what_it_reported_last() -> None:
    prepared = (*READY, (17, "prepare progress step 40 of 100"))
    assert shown(prepared) == [
        ("Process", "done", 1.0),
        ("Weight store", "done", 3.0),
        ("Dataflow", "done", 3.0),
        ("Model", "active", 5.0),
        ("Nodes", "active", 4.0),
        ("Trainer", "waiting", None),
        ("First step", "waiting", None),
    ]
    details = {phase.title: phase.detail for phase in phases(log(*prepared), launched_at=10, now=20)}
    assert (details["Model"], details["Nodes"]) == ("step 40 of 100", "1 of 2 ready")


def test_the_first_step_ends_the_start_and_a_resumed_run_starts_again() -> None:
    done = (
        *READY,
        (17, "prepare exited"),
        (18, "trainer-a started"),
        (18.5, "node-2 ready"),
        (18.6, "trainer-a ready"),
    )
    assert shown(done)[-1] == ("First step", "active", 20 - 18.6)
    stepped = (*done, (19, "run stepped"))
    finished = phases(log(*stepped), launched_at=10, now=20, end=PhaseState.STOPPED)
    assert has_started(finished)
    assert start_duration_s(log(*stepped)) == 8.0
    resumed = log(*stepped, *((at + 100, text) for at, text in STARTING))
    assert not has_started(phases(resumed, launched_at=110, now=120))


def test_a_run_that_ends_before_its_first_step_failed_in_its_phase() -> None:
    events = (*STARTING, (15, "dataflow failed exited with code 2 (no port)"), (16, "not an event"))
    failed = phases(log(*events), launched_at=10, now=20, end=PhaseState.FAILED)
    states = {phase.title: (phase.state, phase.detail) for phase in failed}
    assert states["Dataflow"] == (PhaseState.FAILED, "exited with code 2 (no port)")


def test_a_run_that_ended_as_asked_before_its_first_step_was_stopped_in_its_phase() -> None:
    stopped = shown(READY, end=PhaseState.STOPPED)
    assert [(title, state) for title, state, _ in stopped if title in ("Dataflow", "Nodes", "Trainer")] == [
        ("Dataflow", "done"), ("Nodes", "stopped"), ("Trainer", "waiting"),
    ]  # fmt: skip
