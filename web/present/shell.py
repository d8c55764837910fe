"""What frames every page: which run, how old the data is, which policy and time range are chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from astraflow.contract.ids import PolicyId
from web.feed.state import FeedState, RunState
from web.history.ranges import DEFAULT_RANGE, RANGES_S, TimeRange, range_from
from web.present import formats
from web.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of several links of which one is chosen."""

    label: str
    href: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """The frame of a page."""

    run: str
    recipe: str
    dataflow: str
    simulated: tuple[str, ...]
    troubles: tuple[str, ...]
    is_durable: bool
    sequence: int
    age_s: float | None
    age_text: str
    feed: FeedState
    problem: str
    next_try_s: float | None
    """Until dataflow is dialled again; None while that goes on, and while all is well."""
    is_stale: bool
    has_data: bool
    ranges: Sequence[Choice] = ()
    custom: "CustomRange | None" = None
    policies: Sequence[Choice] = ()
    window_s: float | None = None
    """Length of the range that moves on with now; None without one."""
    window_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomRange:
    """The form that asks for any range, filled in with what is shown."""

    path: str
    policy: str
    begin: str
    """UTC, as a date field has it."""
    end: str
    label: str
    """What is shown, when that is a custom range; else empty."""
    moving_href: str
    """Back to what moves on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the address of a page asks for."""

    policy: PolicyId | None
    """None while no policy is known."""
    span: TimeRange

    @property
    def range(self) -> str:
        """Name of the time range."""
        return self.span.name

    @property
    def range_s(self) -> float:
        """Length of the time range."""
        return self.span.duration_s

    @property
    def query(self) -> str:
        """The same as an address has it."""
        return urlencode({"policy": self.policy or "", **self.span.query})


def chosen(state: RunState, asked: Mapping[str, str]) -> Chosen:
    """The policy and range that an address asks for; the first, or the default, for what there is not."""
    known = [stream.policy for stream in state.report.streams] if state.report else []
    policy = asked.get("policy", "")
    found = next((known_id for known_id in known if known_id == policy), known[0] if known else None)
    return Chosen(policy=found, span=range_from(asked))


def shell(state: RunState, settings: Settings, *, path: str = "", choice: Chosen | None = None) -> Shell:
    """The frame; with `path` and `choice` also links to the other ranges and policies of that page."""
    report = state.report
    age_s = state.age_s
    return Shell(
        run=report.run if report else "",
        recipe=settings.recipe,
        dataflow=settings.dataflow,
        simulated=report.simulated if report else (),
        troubles=state.troubles,
        is_durable=report.is_durable if report else True,
        sequence=report.sequence if report else 0,
        age_s=age_s,
        age_text="no data yet" if age_s is None else f"{formats.duration(max(0.1, age_s))} old",
        feed=state.feed.state,
        problem=state.feed.problem,
        next_try_s=state.next_try_s,
        is_stale=state.is_stale,
        has_data=report is not None,
        ranges=_ranges(path, choice) if choice else (),
        custom=_custom(state, path, choice) if choice else None,
        policies=_policies(state, path, choice) if choice else (),
        window_s=choice.range_s if choice and choice.span.is_moving else None,
        window_name=choice.range if choice else "",
    )


def _ranges(path: str, choice: Chosen) -> list[Choice]:
    return [
        Choice(
            label=name,
            href=_href(path, {"policy": choice.policy or "", "range": name}),
            is_chosen=name == choice.range,
        )
        for name in RANGES_S
    ]


def _custom(state: RunState, path: str, choice: Chosen) -> CustomRange:
    span, report = choice.span, state.report
    end = span.end if span.end is not None else report.at if report else 0.0
    moving = span.name if span.is_moving else DEFAULT_RANGE
    begin_text, end_text = (moment(at) for at in (end - span.duration_s, end))
    return CustomRange(
        path=path,
        policy=choice.policy or "",
        begin=begin_text,
        end=end_text,
        label="" if span.is_moving else f"{begin_text[5:16]} to {end_text[5:16]} UTC".replace("T", " "),
        moving_href=_href(path, {"policy": choice.policy or "", "range": moving}),
    )


def moment(at: float) -> str:
    """A time in UTC, as a date field has it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _policies(state: RunState, path: str, choice: Chosen) -> list[Choice]:
    streams = state.report.streams if state.report else ()
    if len(streams) < 2:
        return []
    return [
        Choice(
            label=stream.policy,
            href=_href(path, {"policy": stream.policy, **choice.span.query}),
            is_chosen=stream.policy == choice.policy,
        )
        for stream in streams
    ]


def _href(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode({key: value for key, value in query.items() if value})}"
