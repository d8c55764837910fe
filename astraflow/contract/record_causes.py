"""Causes of records as words, with the templates of their texts, and words within texts.

A cause that is not listed is shown as its word: `out_of_memory` as "out of memory".
"""

from collections.abc import Mapping

CAUSES: Mapping[str, str] = {
    # reasons of the sizer
    "unmeasured": "no trainer step or no finished work has been measured yet",
    "switched_off": "autoscaling is off",
    "stale_input": "too many measurements are stale to change the size",
    "stalled": "the slots of the nodes are in use and no episode has ended, where {due_groups:.0f} groups were "
    "due; look for environments, engines or judges that hang: more nodes would hang too",
    "paused": "the run is paused, and its demand is assumed to be unchanged",
    "idle": "the run has been paused for long, so only warm nodes are kept",
    "inside_band": "capacity is {ratio:.2f} of what trainers need, inside the band {band_low:.2f} to {band_high:.2f}",
    "confirming_up": "capacity is {ratio:.2f} of what trainers need, below the band {band_low:.2f} to "
    "{band_high:.2f}, not for long enough yet",
    "confirming_down": "capacity is {ratio:.2f} of what trainers need, above the band {band_low:.2f} to "
    "{band_high:.2f}, not for long enough yet",
    "below_band": "capacity is {ratio:.2f} of what trainers need, below the band {band_low:.2f} to {band_high:.2f}",
    "cold_start": "capacity seems to be {ratio:.2f} of what trainers need, measured over {steps:.0f} of "
    "{enough_steps:.0f} steps: until then, orders aim at {cold_start_share:.0%} of that need",
    "trainer_waits": "capacity is barely enough ({ratio:.2f}), and the trainer of {policy} waits {wait_share:.0%} "
    "of the time",
    "far_below": "capacity is only {ratio:.2f} of what trainers need",
    "above_band": "capacity is {ratio:.2f} of what trainers need, above the band {band_low:.2f} to {band_high:.2f}",
    "needed_for_load": "the remaining nodes could not carry the load if any node were retired",
    "trainer_waited_recently": "the trainer of {policy} waited recently, although capacity is now {ratio:.2f} of "
    "its need, above the band {band_low:.2f} to {band_high:.2f}",
    "replacing": "replacements of slow or expensive nodes are ordered",
    "retiring": "replacements are ready, so the nodes that they replace are retired",
    "trimmed": "the trainer of {policy} waits {wait_share:.0%} of the time although capacity is {ratio:.2f} of its "
    "need, so the assumed demand is raised",
    "gated": "the trainer of {waiting_policy} waits {gated_wait_share:.0%} of the time while {idle_slots:.0f} of "
    "{slots:.0f} slots are idle at the staleness gate[: more nodes would hardly help, max_staleness "
    "{staleness_needed:.0f} instead of {max_staleness:.0f} would (a group takes {group_s:.3g} s)][ of {gate_policy}, "
    "whose trainer limits a flow that both share: more nodes would hardly help]",
    "launches_failing": "ordered nodes do not arrive, so orders go to other pools for a while",
    "pool_bounds": "the pool's bounds changed the target",
    "partial_nodes": "nodes of {partial_pools} serve some policies only, and the rule can size only nodes that "
    "serve all: set the sizes by hand, or let these nodes serve all policies",
    "plain_rule": "the trainer of {policy} waits {wait_share:.0%} of the time",
    "complete": "the run is complete",
}
"""Template by `Record.cause`, which is rendered with the values of the record."""

WORDS: Mapping[str, str] = {
    "kill_switch": "the kill switch",
    "mode": "the pool's mode",
    "max_nodes": "the maximum number of nodes",
    "dollars_per_hour": "the hourly budget",
    "dollars_per_day": "the daily budget",
    "quota": "the provider's quota",
    "override": "a manual override",
    "breaker": "recent launch failures",
    "action_budget": "the limit of changes in ten minutes",
    "stale_input": "old measurements",
    "stalled": "nodes that are in use and finish nothing",
    "paused": "the pause of the run",
    "launches_failing": "requested nodes that do not arrive",
    "partial_nodes": "nodes that serve some policies only",
    "gated": "the staleness gate, at which nodes wait",
}
"""Noun phrase of each limit that keeps a target away from the demand, to follow "held back by"."""
