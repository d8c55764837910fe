"""Scales up: orders nodes when capacity is confirmed to be below the band, within the action budget."""

from dataclasses import replace

from astraflow.contract.fleet.recommendations import LimitInEffect, Reason
from astraflow.scaling.rule.balance import BAND_LOW, Balance, Tick
from astraflow.scaling.rule.placement import ROUNDING, order_capacity

BARELY_ENOUGH = 0.03
"""Distance above the lower edge of the band within which a waiting trainer decides."""

FAR_BELOW = 0.5
"""Ratio of capacity to demand below which no confirmation is needed, unless it comes from the short window."""

COLD_START_SHARE = 2 / 3
"""Share of the measured need that orders reach while few steps are measured: these may overestimate it."""

NOISE_FACTOR_AFTER_SCALE_DOWN = 3.0
"""Factor on the noise threshold for orders right after a scale-down."""


def try_scale_up(tick: Tick, balance: Balance) -> bool:
    """Orders missing capacity once the shortage is confirmed. Returns whether nodes were ordered or will be.

    Orders nothing while nodes idle at the staleness gate, where further nodes would idle too. Returns False where a
    lasting limit allows no node, so that slow nodes can be replaced instead.
    """
    options = tick.spec.options
    if tick.is_gated:
        tick.after = replace(tick.after, low_ticks=0)
        return False
    wait = balance.demand.stream.wait_share_300_s
    noise = balance.noise * (NOISE_FACTOR_AFTER_SCALE_DOWN if tick.is_just_after(tick.before.scale_downs) else 1.0)
    is_below = balance.ratio < BAND_LOW - noise
    is_waited_for = (balance.ratio < BAND_LOW + BARELY_ENOUGH and wait > options.wait_high) or (
        balance.ratio < BAND_LOW and wait > options.wait_low
    )
    low_ticks = tick.before.low_ticks + 1 if is_below or is_waited_for else 0
    tick.after = replace(tick.after, low_ticks=low_ticks)
    if not is_short(tick, balance):
        return False
    is_far = balance.ratio < FAR_BELOW
    # A change found in the short window drops earlier ratios, so this ratio is no median and may be noise.
    is_sure = low_ticks >= options.sustain_up_ticks or (is_far and not tick.capacity.uses_short_window)
    if not is_sure:
        tick.reasons.append(Reason.CONFIRMING_UP)
        return True
    is_cold = is_cold_start(tick, balance)
    missing = balance.shortfall
    if is_cold:
        tick.reasons.append(Reason.COLD_START)
        missing = (balance.ordered + balance.shortfall) * COLD_START_SHARE - balance.ordered
        if missing <= ROUNDING * tick.smallest_rate:
            return True
    else:
        tick.reasons.append(Reason.FAR_BELOW if is_far else Reason.BELOW_BAND if is_below else Reason.TRAINER_WAITS)
    return order_within_budget(tick, balance, missing) > 0 or is_temporarily_limited(tick)


def is_cold_start(tick: Tick, balance: Balance) -> bool:
    """Returns whether too few steps are measured to trust the demand."""
    return len(balance.demand.stream.compute_s) < tick.spec.options.cold_start_steps


def is_short(tick: Tick, balance: Balance) -> bool:
    """Returns whether capacity is short, confirmed or not."""
    return tick.after.low_ticks > 0 and balance.shortfall > ROUNDING * tick.smallest_rate


def is_temporarily_limited(tick: Tick) -> bool:
    """Returns whether a limit that ends by itself blocked orders; other limits need a change of configuration."""
    return bool({LimitInEffect.ACTION_BUDGET, LimitInEffect.BREAKER}.intersection(tick.limited_by))


def order_within_budget(tick: Tick, balance: Balance, groups_per_s: float) -> int:
    """Orders capacity within the action budget; returns the number of nodes."""
    options = tick.spec.options
    if len(tick.recent(tick.before.scale_ups)) >= options.scale_ups_per_window:
        tick.limited_by.append(LimitInEffect.ACTION_BUDGET)
        return 0
    order = order_capacity(groups_per_s, tick.pools, tick.signals, tick.spec)
    tick.limited_by += [limit for limit in order.limited_by if limit not in tick.limited_by]
    if order.nodes:
        ratio = (balance.ordered + order.groups_per_s) / balance.needed
        tick.after = replace(
            tick.after,
            scale_ups=(*tick.recent(tick.before.scale_ups), tick.at),
            acted_at=tick.at,
            ratios=(ratio,),
            low_ticks=0,
            high_ticks=0,
            is_settling=False,
        )
    return order.nodes
