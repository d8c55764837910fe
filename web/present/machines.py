"""Machines of a pool: one by one, how long launches took, and why some never worked."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import Instance, InstanceState, Pool
from web.present import formats
from web.present.causes import with_cause
from web.present.pools import usd
from web.present.sentences import grounded
from web.reading.exports import Sheet

STATE_TONES = {
    InstanceState.INTENDED: "busy",
    InstanceState.PENDING: "busy",
    InstanceState.RUNNING: "busy",
    InstanceState.READY: "good",
    InstanceState.DRAINING: "warn",
    InstanceState.RETIRING: "warn",
    InstanceState.SUSPECT: "bad",
    InstanceState.GONE: "off",
}

DELAY_BARS = 12
MOST_REASONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayBar:
    """Launches that took about so long."""

    label: str
    low_s: float
    high_s: float
    count: int
    height: float
    """Share of the highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """How long launches took, from the order to a node that works."""

    sentence: str
    bars: tuple[DelayBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Launches that never came to work."""

    failed: int
    why_failed: tuple[tuple[str, int], ...]
    """What was said of them, and how often."""
    taken_back: int
    """Ended on somebody's order, or claimed by the provider, before they worked: nothing went wrong."""
    why_taken_back: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRow:
    """One machine."""

    id: str
    state: str
    tone: str
    since: float
    type: str
    region: str
    is_spot: bool
    usd_per_hour: str
    ready_after: str
    actor: str
    note: str


def delays(instances: Sequence[Instance], pool: Pool) -> Delays:
    """The distribution of launch delays among the machines that are known."""
    found = sorted(one.ready_at - one.intended_at for one in instances if one.ready_at is not None)
    if not found:
        expected = formats.duration(pool.launch_delay_s)
        return Delays(sentence=f"No launch was measured yet; its provider says {expected}", bars=())
    middle = found[len(found) // 2]
    tenth = quantiles(found, n=10, method="inclusive")[-1] if len(found) > 1 else found[0]
    launches = f"{formats.count(len(found))} launches"
    sentence = (
        f"Half of {launches} worked within {formats.duration(middle)}, nine of ten within {formats.duration(tenth)}"
        if len(found) > 1
        else f"The one launch that was measured took {formats.duration(middle)}"
    )
    low, high = found[0], found[-1]
    if high - low < high / 4:  # hardly any spread: show it as what it is, not as wide as the chart
        low, high = 0.75 * middle, 1.25 * middle
    width = max((high - low) / DELAY_BARS, 1e-9)
    counts = Counter(min(DELAY_BARS - 1, int((delay - low) / width)) for delay in found)
    most = max(counts.values())
    return Delays(
        sentence=sentence,
        bars=tuple(
            DelayBar(
                label=f"{formats.duration(low + index * width)} to {formats.duration(low + (index + 1) * width)}",
                low_s=low + index * width,
                high_s=low + (index + 1) * width,
                count=counts[index],
                height=counts[index] / most,
            )
            for index in range(DELAY_BARS)
        ),
    )


def delay_sheet(pool: Pool, found: Delays) -> Sheet:
    """The bars."""
    return Sheet(
        name=f"astraflow-launches-{pool.spec.id}",
        columns=("from_s", "to_s", "launches"),
        rows=[(round(bar.low_s, 3), round(bar.high_s, 3), bar.count) for bar in found.bars],
    )


def unfinished(instances: Sequence[Instance]) -> Unfinished:
    """The launches that never worked, apart: those that failed, and those that somebody wanted back."""
    ended = [one for one in instances if one.state is InstanceState.GONE and one.ready_at is None]
    failed = [one for one in instances if one.cause is Cause.FAILED]
    taken_back = [one for one in ended if one.cause is not Cause.FAILED]
    return Unfinished(
        failed=len(failed), why_failed=_said(failed), taken_back=len(taken_back), why_taken_back=_said(taken_back)
    )


def _said(instances: Sequence[Instance]) -> tuple[tuple[str, int], ...]:
    """What was said of them and how often, the most frequent first."""
    said = (grounded(one.message)[1] or one.message or "nothing was said" for one in instances)
    return tuple(Counter(said).most_common(MOST_REASONS))


def spot_share(instances: Sequence[Instance]) -> str:
    """Of the machines that cost something now."""
    alive = [one for one in instances if one.state is not InstanceState.GONE]
    return formats.percent(sum(one.is_spot for one in alive) / len(alive)) if alive else formats.MISSING


def instance_row(one: Instance) -> InstanceRow:
    """A machine for the table."""
    times = (one.gone_at, one.retiring_at, one.draining_at, one.ready_at, one.launched_at, one.intended_at)
    return InstanceRow(
        id=one.id,
        state=with_cause(one.state.value, one.cause),
        tone=STATE_TONES[one.state],
        since=next(at for at in times if at is not None),
        type=one.type,
        region=one.region,
        is_spot=one.is_spot,
        usd_per_hour=usd(one.usd_per_hour),
        ready_after=formats.MISSING if one.ready_at is None else formats.duration(one.ready_at - one.intended_at),
        actor=one.actor,
        note=one.message or one.reason,
    )
