"""Ordering nodes: when capacity is confirmed to be below the band, within the budget of actions."""

from dataclasses import replace

from astraflow.contract.advice import Cap, Reason
from astraflow.scaling.balance import BAND_LOW, Balance
from astraflow.scaling.placement import ROUNDING, order
from astraflow.scaling.tick import Tick

BARELY = 0.03
"""Above the low edge by less than this, a trainer that waits decides."""

FAR_BELOW = 0.5
"""Of the need: so little is not confirmed first, unless a short window says so."""

AFTER_DOWN = 3.0
"""Right after nodes were retired it takes so much more than noise to order others."""


def go_up(tick: Tick, balance: Balance) -> bool:
    """Order what is missing, once that is confirmed. Returns whether anything was done or is still to be.

    Nothing is while nodes stand at the staleness gate with empty slots: others would stand beside them. Nor where a cap
    leaves room for none: what there is may then be made better, by replacing slow nodes.
    """
    options = tick.spec.options
    if tick.is_gated:
        tick.after = replace(tick.after, low_ticks=0)
        return False
    wait = balance.demand.stream.wait_300_s
    noise = balance.noise * (AFTER_DOWN if tick.is_just_after(tick.before.downs) else 1.0)
    is_below = balance.ratio < BAND_LOW - noise
    is_waited_for = (balance.ratio < BAND_LOW + BARELY and wait > options.wait_high) or (
        balance.ratio < BAND_LOW and wait > options.wait_low
    )
    low_ticks = tick.before.low_ticks + 1 if is_below or is_waited_for else 0
    tick.after = replace(tick.after, low_ticks=low_ticks)
    if not is_short(tick, balance):
        return False
    is_far = balance.ratio < FAR_BELOW
    # What a short window says of rates drops the ratios before it, so this one is no median: chance may have made it.
    is_sure = low_ticks >= options.sustain_up_ticks or (is_far and not tick.capacity.is_short)
    if not is_sure:
        tick.reasons.append(Reason.CONFIRMING_UP)
        return True
    reason = Reason.FAR_BELOW if is_far else Reason.BELOW_BAND if is_below else Reason.TRAINER_WAITS
    tick.reasons.append(reason)
    return order_more(tick, balance, balance.lacking) > 0 or is_closed_for_now(tick)


def is_short(tick: Tick, balance: Balance) -> bool:
    """Whether it was found that nodes are lacking, be that confirmed or not."""
    return tick.after.low_ticks > 0 and balance.lacking > ROUNDING * tick.smallest_rate


def is_closed_for_now(tick: Tick) -> bool:
    """Whether orders were held back by what opens by itself; other caps stay until somebody moves them."""
    return bool({Cap.ACTION_BUDGET, Cap.BREAKER}.intersection(tick.capped_by))


def order_more(tick: Tick, balance: Balance, groups_per_s: float) -> int:
    """Within the budget of actions; returns how many nodes."""
    options = tick.spec.options
    if len(tick.recent(tick.before.ups)) >= options.ups_per_window:
        tick.capped_by.append(Cap.ACTION_BUDGET)
        return 0
    placed = order(groups_per_s, tick.pools, tick.signals, tick.spec)
    tick.capped_by += [cap for cap in placed.capped_by if cap not in tick.capped_by]
    if placed.nodes:
        ratio = (balance.ordered + placed.groups_per_s) / balance.needed
        tick.after = replace(
            tick.after,
            ups=(*tick.recent(tick.before.ups), tick.at),
            acted_at=tick.at,
            ratios=(ratio,),
            low_ticks=0,
            high_ticks=0,
            is_settling=False,
        )
    return placed.nodes
