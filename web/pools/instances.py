"""Instances of a pool: their table, the distribution of launch delays, and launches that failed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from astraflow.contract.fleet.instances import Cause, Instance, InstanceState
from astraflow.contract.fleet.pools import Pool
from web.components import formats
from web.components.downloads import Sheet
from web.components.texts import with_cause

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
MAX_REASONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayBar:
    """Number of launches within one range of delays."""

    label: str
    low_s: float
    high_s: float
    count: int
    height: float
    """Height relative to the highest bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDelays:
    """Distribution of launch delays, from the request to a ready node."""

    sentence: str
    bars: tuple[DelayBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedLaunches:
    """Launches that never became ready."""

    failed: int
    failure_reasons: tuple[tuple[str, int], ...]
    """Message and number of occurrences."""
    cancelled: int
    """Terminated on request or preempted by the provider before they were ready."""
    cancel_reasons: tuple[tuple[str, int], ...]


def launch_delays(instances: Sequence[Instance], pool: Pool) -> LaunchDelays:
    """Returns the distribution of launch delays of the known instances."""
    delays = sorted(instance.ready_at - instance.intended_at for instance in instances if instance.ready_at is not None)
    if not delays:
        expected = formats.duration(pool.launch_delay_s)
        return LaunchDelays(sentence=f"No launch measured yet; the provider estimates {expected}", bars=())
    middle = delays[len(delays) // 2]
    tenth = quantiles(delays, n=10, method="inclusive")[-1] if len(delays) > 1 else delays[0]
    launches = f"{formats.count(len(delays))} launches"
    sentence = (
        f"Of {launches}, half were ready within {formats.duration(middle)}, 90% within {formats.duration(tenth)}"
        if len(delays) > 1
        else f"The only measured launch took {formats.duration(middle)}"
    )
    low, high = delays[0], delays[-1]
    if high - low < high / 4:  # a narrow distribution must not fill the whole chart
        low, high = 0.75 * middle, max(high, 1.25 * middle)
    width = max((high - low) / DELAY_BARS, 1e-9)
    counts = Counter(min(DELAY_BARS - 1, int((delay - low) / width)) for delay in delays)
    most = max(counts.values())
    return LaunchDelays(
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


def launch_delay_sheet(pool: Pool, delays: LaunchDelays) -> Sheet:
    """Returns the bars as a sheet for download."""
    return Sheet(
        name=f"astraflow-launches-{pool.spec.id}",
        columns=("from_s", "to_s", "launches"),
        rows=[(round(bar.low_s, 3), round(bar.high_s, 3), bar.count) for bar in delays.bars],
    )


def unfinished_launches(instances: Sequence[Instance]) -> UnfinishedLaunches:
    """Returns the launches that never became ready: failed ones apart from cancelled ones."""
    ended = [instance for instance in instances if instance.state is InstanceState.GONE and instance.ready_at is None]
    failed = [instance for instance in instances if instance.cause is Cause.FAILED]
    cancelled = [instance for instance in ended if instance.cause is not Cause.FAILED]
    return UnfinishedLaunches(
        failed=len(failed),
        failure_reasons=_message_counts(failed),
        cancelled=len(cancelled),
        cancel_reasons=_message_counts(cancelled),
    )


def _message_counts(instances: Sequence[Instance]) -> tuple[tuple[str, int], ...]:
    """Returns the messages of instances with their number, the most frequent first."""
    messages = (instance.message or "no message" for instance in instances)
    return tuple(Counter(messages).most_common(MAX_REASONS))


def spot_share(instances: Sequence[Instance]) -> str:
    """Returns the share of spot instances among those that are not gone, in per cent."""
    active = [instance for instance in instances if instance.state is not InstanceState.GONE]
    return formats.percent(sum(instance.is_spot for instance in active) / len(active)) if active else formats.MISSING


def state_text(instance: Instance) -> str:
    """Returns the state of an instance, with the cause of its end."""
    return with_cause(instance.state.value, instance.cause)


def state_since(instance: Instance) -> float:
    """Returns the time at which an instance reached its state. Unix seconds."""
    ended = instance.gone_at or instance.retiring_at or instance.draining_at
    return ended or instance.ready_at or instance.launched_at or instance.intended_at
