"""Causes of records as words, with the templates of their texts, and words within texts.

A cause that is not listed is shown as its word: `out_of_memory` as "out of memory".
"""

from collections.abc import Mapping

from astraflow.contract.learning_faults import LearningFault

_REASONS = {
    "unmeasured": "no trainer step or no finished work has been measured yet",
    "switched_off": "autoscaling is off",
    "stale_input": "too many measurements are stale to change the size",
    "stalled": "the slots of the nodes are in use and no episode has ended, where {due_groups:.0f} groups were "
    "due; look for environments, engines or judges that hang: more nodes would hang too",
    "paused": "the run is paused, and its demand is assumed to be unchanged",
    "idle": "the run has been paused for long, so only warm nodes are kept",
    "inside_band": "capacity is inside the band of {band_low:.2f} to {band_high:.2f} of what trainers need",
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
    "{slots:.0f} slots are idle, because rollouts may not run further ahead[: more nodes would hardly help, "
    "max_staleness {staleness_needed:.0f} instead of {max_staleness:.0f} would (a group takes {group_s:.3g} s)]"
    "[ of {gate_policy}, "
    "whose trainer limits a flow that both share: more nodes would hardly help]",
    "launches_failing": "ordered nodes do not arrive, so orders go to other pools for a while",
    "pool_bounds": "the pool's bounds changed the target",
    "partial_nodes": "nodes of {partial_pools} serve some policies only, and the rule can size only nodes that "
    "serve all: set the sizes by hand, or let these nodes serve all policies",
    "plain_rule": "the trainer of {policy} waits {wait_share:.0%} of the time",
    "complete": "the run is complete",
    # orphans
    "orphan_adopted": "instance of launch {launch} adopted: the provider lists the instance again, and its node works",
    "orphan_terminated": "orphan {handle} terminated: the ledger has no live launch {launch}, and it was orphaned for "
    "{orphaned_s:.0f} s",
    # alarms and problems of the fleet service
    "breaker_open": "{failures:.0f} launches of pool {pool} failed in a row; the next attempts are every "
    "{retry_s:.0f} s until one succeeds",
    "budget_spent": "{owner}: {spent_usd:.2f} of the daily budget of {budget_usd:.2f} dollars are spent, at "
    "{usd_per_hour:.2f} an hour; no further nodes are launched",
    "orphans_found": "{orphans:orphaned instance} at provider {provider} have the cluster's tag and no launch "
    "({handle} first); those of this fleet, without a working node, are terminated after {quarantine_s:.0f} s",
    "orphans_of_another_fleet": "{orphans:instance} at provider {provider} ({handle} first) have the tag {cluster} and "
    "no live launch, and are not terminated: they belong to {owner}; give each fleet service a `cluster` of its own",
    "orphans_at_work": "{orphans:instance} at provider {provider} ({handle} first) have the tag {cluster} and no live "
    "launch, and are not terminated: their nodes work; drain them, or check the ledger",
    "orphans_unobserved": "{orphans:instance} at provider {provider} ({handle} first) have the tag {cluster} and no "
    "live launch, and are not terminated: dataflow does not answer, so their nodes may work",
    "provider_unreadable": "provider {provider} cannot be read: {error}",
    "provider_not_configured": "instance {launch} belongs to provider {provider}, which is not configured",
    "instance_returned": "instance {launch} was recorded as ended, but its node works; check its tags at the provider",
    "instance_not_terminated": "instance {launch} has not terminated for {waited_s:.0f} s after the request; check "
    "{handle} at the provider",
    "instance_not_listed": "instance {launch} may run, but provider {provider} does not list it; check the tags of "
    "{handle} at the provider",
    "launch_waits": "launch {launch} has waited for {waited_s:.0f} s: {error}",
    "launch_held": "launch {launch} has waited for {waited_s:.0f} s: the kill switch is on, or as many machines as the "
    "pool may have still run",
    # scopes of the kill switch
    "none": "the kill switch is off",
    "agents": "the kill switch is on for agents",
    "all": "the kill switch is on for all changes",
}
"""Reasons of the sizer."""

_EXPORT_HINT = "the run continues without it; `astraflow set-aside RUN` lists and exports it"

_CENTERING = "use a loss with `centering = 8` (column `top_tokens`) and the correction `tis`, and raise max_mismatch"
_COMPUTED = "[, engines in {engines}][, trainer in {trainer}]"

MISMATCHES = {
    "mismatch_filtered": "engines sample from a part of the trained distribution: hardly a token is more likely under "
    "the trainer, which gives {mass:.0%} to what they sample ({k3:.2g} nats per token); sample with top_p 1, top_k 0 "
    "and min_p 0, or on engines that record the column `support`",
    "mismatch_routed": "engine and trainer choose other experts of a mixture for the same tokens ({k3:.2g} nats per "
    "token" + _COMPUTED + "); set router_replay = true (column `expert_sets`), or " + _CENTERING,
    "mismatch_coarse": "engines compute other probabilities from the same weights, up to {probe:.2g} nats on the probe"
    + _COMPUTED
    + " ({k3:.2g} nats per token of samples); "
    + _CENTERING
    + ", or give both one precision",
    "mismatch_sampled": "engines agree with the trainer on the probe, within {probe:.2g} nats, and not on what they "
    "sample ({k3:.2g} nats per token): compare temperature, penalties and chat template",
    "mismatch_unexplained": "both give other probabilities to the same tokens, in both directions ({k3:.2g} nats per "
    "token, {cut:.0%} of them beyond factors of 0.5 to 5"
    + _COMPUTED
    + "): compare temperature and precision of engine "
    "and trainer; with coarse weights " + _CENTERING,
}
"""Causes for which engine and trainer give other probabilities to the same tokens (`astraflow.contract.mismatch`)."""

_PROBLEMS = {
    "journal": "{error}",
    "memory_full": "results fill the {limit_mib:.0f} MiB limit of memory, and no batch is complete: raise "
    "dataflow.memory_bytes, or lower batch_groups or max_staleness",
    "trainer_problem": "the trainer of '{policy}' waits: {error}",
    "flow_unserved": "no node serves all policies of the flow '{flow}' ({policies}): start a node that serves them, or "
    "add them to the `policies` of a node",
    "node_on_probation": "the node '{node}' held {held}: it gets a few tasks at a time until it returns results; read "
    "its log, restart it, or revoke its credential",
    "records_set_aside": "{records:stored record} could not be read and are set aside ({counts}), [stored as "
    "{stored_as}][not stored: {store_error}]; the first is {first}; " + _EXPORT_HINT,
    "batch_set_aside": "batch {batch} is set aside, {rows:row} ({nodes}) [stored as {stored_as}][not stored: "
    "{store_error}]: {steps:step} on it ended the trainer: {error}; " + _EXPORT_HINT,
    "checkpoint_set_aside": "{error}",
    "archive_unwritable": "{error}; the run continues, but new history, events and sampled trajectories wait in "
    "memory[, and the oldest {dropped:.0f} of them were dropped]",
    "archive_set_aside": "'{path}' was damaged ({error}) and is kept as '{aside}': history, events and sampled "
    "trajectories from before are missing here",
    "revocations": "{error}",
    "reports_unshown": "reports that could not be shown: {reports:.0f}; the log of the web service has the cause",
}
"""Problems of a run."""

STALLS = {
    "no_trainer": "its trainer has not connected yet: wait while it prepares the model, or read its log",
    "no_pull": "its trainer pulls no batch, although {buffered:.0f} groups are ready: restart the trainer",
    "flows_paused": "the flows {flows} are paused: resume them",
    "no_node": "no node is in the run: start one with `astraflow join`, or a pool",
    "nodes_starting": "{nodes:.0f} nodes have joined and load their engine and weights[: {error}]",
    "episodes_fail": "all {failed:.0f} episodes after step {step:.0f} failed ({outcomes})[: {error}]",
    "filtered": "{dropped:.0f} groups came in after step {step:.0f}, and all were dropped ({outcomes}); the "
    "mean reward "
    "of the latest rollouts is {reward:.3g}[: {error}]",
    "other_policy": "its flow waits for the trainer of '{other}', which has groups for all versions that its staleness "
    "allows: see why that trainer makes no steps",
    "old_weights": "all nodes are {lag:.0f} or more versions behind its trainer, more than max_staleness = "
    "{max_staleness:.0f} allows[: {error}]",
    "tasks_kept": "the node '{node}' holds {tasks:.0f} tasks, the oldest for {held_s:.0f} s, and has returned "
    "{results:.0f}: read its log, restart it, or revoke its credential",
    "evaluating": "its nodes run the evaluation '{evaluation}' ({done:.0f} of {total:.0f} samples), and take no "
    "training "
    "tasks meanwhile: add a node, or stop the round",
    "no_leases": "{nodes:.0f} nodes are ready and lease no task[: {error}]",
}
"""Causes for which a trainer gets no batch."""

_EVALUATION_STALLS = {
    "evaluation_unserved": "no node that serves its policies is ready",
    "evaluation_untaken": "none of the {nodes:.0f} ready nodes takes evaluation tasks: set nodes.evaluates = "
    "true on one",
    "evaluation_versions": "it needs {versions}, and its nodes serve other versions, which another party loads: "
    "stop it "
    "and evaluate the version that they serve, or let a node with its own engine join",
    "evaluation_error": "{error}",
}
"""Causes for which no node runs a task of an evaluation."""

_MAINTAINER = {
    "model_fails": "the model has failed {failures:.0f} times in a row",
    "day_budget_spent": "the day's budget is spent: {unit}",
    "transcript_not_stored": "{error}",
    "notices_dropped": "{notices:notice} dropped",
    "notices_delayed": "{notices:.0f} notices wait because the webhook fails",
}
"""Problems of the maintainer."""

CAUSES: Mapping[str, str] = {
    **_REASONS,
    **_PROBLEMS,
    **_MAINTAINER,
    **MISMATCHES,
    **{cause: f"the policy '{{policy}}' is not trained: {text}" for cause, text in STALLS.items()},
    **{cause: f"the evaluation '{{evaluation}}' does not run: {text}" for cause, text in _EVALUATION_STALLS.items()},
    **{fault.value: f"{fault.headline}: {fault.evidence}" for fault in LearningFault},
}
"""Template by `Record.cause`, which is rendered with the values of the record."""

WORDS: Mapping[str, str] = {
    "kill_switch": "the kill switch",
    "mode": "the pool's mode",
    "max_nodes": "the maximum number of nodes",
    "dollars_per_hour": "the hourly budget",
    "dollars_per_day": "the daily budget",
    "quota": "the provider's quota",
    "hold": "a hold of the pool",
    "breaker": "recent launch failures",
    "action_budget": "the limit of changes in ten minutes",
    "stale_input": "old measurements",
    "stalled": "nodes that are in use and finish nothing",
    "paused": "the pause of the run",
    "launches_failing": "requested nodes that do not arrive",
    "partial_nodes": "nodes that serve some policies only",
    "gated": "the staleness bound, at which nodes wait",
}
"""Noun phrase of each limit that keeps a target away from the demand, to follow "held back by"."""
