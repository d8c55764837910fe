"""Heuristic baseline agent: a few rules instead of a model, for demos, tests and comparisons."""

from collections.abc import Mapping, Sequence
from typing import Any

from maintainer.agent.llm.conversation_view import ConversationView, Step
from maintainer.agent.llm.interface import ToolCall
from maintainer.agent.llm.learning_tactics import BY_FAULT, REASONS, Tactic, change_run, escalate_fault

MAX_MOVED_NODES = 2
"""Nodes per plan."""
LATE_FACTOR = 1.25
"""Multiple of the usual launch delay after which a node is late."""
LATE_SPOT_FACTOR = 0.9
"""Same for spot nodes: the rule soon gives such an order up for the next type of the same market."""
WAITING_SHARE = 0.03
"""Share of waiting above which a trainer is short of data."""
MAX_HOLD_MINUTES = 60
ENOUGH_CAPACITY_SHARE = 0.8
"""Ratio of capacity to demand below which nodes are missing; smaller gaps are noise."""
QUESTION = "what would it cost, and is it allowed"
OWN_LIMITS = frozenset({"action_budget", "mode"})
"""Limits that are not escalated."""


def good(conversation: ConversationView) -> list[Step]:
    """Moves work to pools where launches succeed, retires slow nodes, mends learning, escalates what only people can
    do."""
    return next_step(conversation, [baseline_tactic(signal) for signal in conversation.signals])


def next_step(conversation: ConversationView, tactics: Sequence[str]) -> list[Step]:
    """Returns the next call of the tactics, or the final note. tactics: one of `TACTICS` for each signal; one that does
    not fit its signal changes nothing."""
    plans = [*conversation.answered_calls("fleet_plan"), *conversation.answered_calls("run_change")]
    for call, plan in plans:
        applied_ids = {
            apply_call.arguments["plan_id"]
            for apply_call, _ in conversation.answered_calls("fleet_apply")
            if apply_call.arguments is not None
        }
        is_open = plan.get("verdict") in ("allowed", "needs_approval") and plan["plan_id"] not in applied_ids
        if is_open and not _is_question(call):
            return [conversation.call("fleet_apply", plan_id=plan["plan_id"], idempotency_key=f"apply-{call.id}")]
    for call, reply in conversation.answered_calls("fleet_apply"):
        plan_id = (call.arguments or {})["plan_id"]
        plan = next(result for _, result in plans if result.get("plan_id") == plan_id)
        if reply.get("outcome") == "applied" and reply["launched"] and not conversation.answered_calls("fleet_hold"):
            minutes = min(MAX_HOLD_MINUTES, 1 + int(plan["eta_s"] // 30))  # twice as long as launches take
            reason = "keeps the launched nodes until they are ready: the rule does not see them before"
            return [conversation.call("fleet_hold", pool=plan["pool"], minutes=minutes, reason=reason)]
    for signal, tactic in zip(conversation.signals, tactics, strict=True):
        step = TACTICS[tactic](conversation, signal) if _fits(signal, tactic) else None
        if step is not None:
            return [step]
    return [_note(conversation)]


def _move_elsewhere(conversation: ConversationView, signal: Mapping[str, Any]) -> Step | None:
    """Plans missing nodes in another pool if launches fail or nodes are lost here; escalates the cause."""
    pool = conversation.pool(signal["pool"])
    if pool is None:
        return None
    details = _pool_details(conversation, pool)
    if details is None:
        return conversation.call("fleet_report", pool=pool["pool"], format="detailed")
    missing = min(MAX_MOVED_NODES, (pool["rule_target"] or pool["target"]) - pool["nodes"].get("ready", 0))
    other = _cheapest_other_pool(conversation, pool)
    if other is not None and missing > 0 and _has_room(other) and _is_short(details) and not _has_moved(conversation):
        present = _nodes_present_or_requested(other)
        rule = other["rule_target"] if other["rule_target"] is not None else present
        target = min(other["max_nodes"], rule + MAX_MOVED_NODES, max(present, rule) + missing)
        reason = f"{signal['signal']} in {pool['pool']} ({signal['value']:g}): nodes in this pool instead"
        return conversation.call("fleet_plan", pool=other["pool"], target=target, retire=None, reason=reason)
    if signal["signal"] == "launch_failures" and not conversation.answered_calls("fleet_escalate"):
        causes = ", ".join(sorted(pool["failure_causes"])) or "unknown"
        text = f"{pool['launch_failures_1h']} launches failed recently in {pool['pool']}; cause: {causes}"
        return conversation.call("fleet_escalate", severity="warning", text=text)
    return None


def _short(conversation: ConversationView, signal: Mapping[str, Any]) -> Step | None:
    """Handles a pool below the band: requested nodes do not arrive, or the budget does not allow them."""
    pool = conversation.pool(signal["pool"])
    if pool is None or signal["value"] >= 0:
        return None
    is_requested = (pool["rule_target"] or 0) <= pool["target"]
    return _overdue(conversation, signal, pool) if is_requested else _unaffordable(conversation, signal, pool)


def _overdue(conversation: ConversationView, signal: Mapping[str, Any], pool: Mapping[str, Any]) -> Step | None:
    """Plans nodes in another pool if starting nodes report problems or are late."""
    if _nodes_present_or_requested(pool) == pool["nodes"].get("ready", 0):
        return None
    starting_nodes = conversation.first_reply("fleet_nodes", pool=pool["pool"], filter="starting")
    if starting_nodes is None:
        return conversation.call("fleet_nodes", pool=pool["pool"], filter="starting", sort="age", limit=10)
    late_s = (LATE_SPOT_FACTOR if pool["is_spot"] else LATE_FACTOR) * pool["launch_delay_s"]
    delayed = [
        node for node in starting_nodes.get("nodes", ()) if node["message"] is not None or node["age_s"] > late_s
    ]
    return _move_elsewhere(conversation, signal) if delayed else None


def _unaffordable(conversation: ConversationView, signal: Mapping[str, Any], pool: Mapping[str, Any]) -> Step | None:
    """Plans nodes in another pool if the guard refuses more nodes here because of their cost."""
    details = _pool_details(conversation, pool)
    if details is None:
        return conversation.call("fleet_report", pool=pool["pool"], format="detailed")
    if details["usd_per_hour_max"] is None or not _is_short(details):
        return None
    price_plan = next(
        (plan for call, plan in conversation.answered_calls("fleet_plan") if _is_question(call, pool["pool"])), None
    )
    if price_plan is None:
        target = min(pool["rule_target"], _nodes_present_or_requested(pool) + MAX_MOVED_NODES)
        return conversation.call("fleet_plan", pool=pool["pool"], target=target, retire=None, reason=QUESTION)
    is_too_expensive = any("usd" in finding["code"] for finding in price_plan.get("findings", ()))
    return _move_elsewhere(conversation, signal) if is_too_expensive else None


def _has_room(pool: Mapping[str, Any]) -> bool:
    """True if nodes may be added without a person: the guard allows a few beyond the rule's target."""
    if _has_proposal(pool):
        return False
    rule = pool["rule_target"] if pool["rule_target"] is not None else _nodes_present_or_requested(pool)
    return bool(_nodes_present_or_requested(pool) < min(pool["max_nodes"], rule + MAX_MOVED_NODES))


def _has_proposal(pool: Mapping[str, Any]) -> bool:
    """True if a plan for the pool waits for a person or was rejected recently."""
    return pool["proposal_state"] in ("waiting", "rejected")


def _has_moved(conversation: ConversationView) -> bool:
    """True if this wake has planned a change."""
    return any(not _is_question(call) for call, _ in conversation.answered_calls("fleet_plan"))


def _is_question(call: ToolCall, pool: str | None = None) -> bool:
    """True for a plan that only asks for the guard's verdict and is not applied."""
    arguments = call.arguments or {}
    return arguments.get("reason") == QUESTION and pool in (None, arguments.get("pool"))


def _pool_details(conversation: ConversationView, pool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Details of a pool; None until they were requested."""
    details = [
        pool_details
        for _, reply in conversation.answered_calls("fleet_report")
        for pool_details in reply.get("details", ())
    ]
    return next((pool_details for pool_details in details if pool_details["pool"] == pool["pool"]), None)


def _is_short(details: Mapping[str, Any]) -> bool:
    """True if ready nodes produce less than trainers need; a missing replacement alone is not a shortage."""
    inputs = details["inputs"]
    return bool(
        inputs.get("capacity_groups_per_s", 0.0) < ENOUGH_CAPACITY_SHARE * inputs.get("demand_groups_per_s", 0.0)
    )


def _nodes_present_or_requested(pool: Mapping[str, Any]) -> int:
    """Current plus requested nodes."""
    return sum(count for state, count in pool["nodes"].items() if state not in ("draining", "retiring", "gone"))


def _is_trainer_waiting(conversation: ConversationView) -> bool:
    """True if a trainer is short of data."""
    return any(stream["wait_fraction"] >= WAITING_SHARE for stream in conversation.report["streams"])


def _cheapest_other_pool(conversation: ConversationView, pool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Cheapest working pool with free capacity; prefers one in another region and market."""
    candidates = [
        other
        for other in conversation.report["pools"]
        if other["pool"] != pool["pool"]
        and other["mode"] != "off"
        and not {"launch_failures", "preemption_wave"} & set(other["signals"])
        and other["breaker_left_s"] == 0
        and other["target"] < other["max_nodes"]
    ]
    return min(
        candidates,
        key=lambda other: (_shares_risk(other, pool), other["usd_per_node_hour"] or 0.0, other["pool"]),
        default=None,
    )


def _shares_risk(other: Mapping[str, Any], pool: Mapping[str, Any]) -> bool:
    """True if both pools share a risk: quota belongs to a region, spot capacity to a market."""
    return bool(other["region"] and other["region"] == pool["region"]) or bool(other["is_spot"] and pool["is_spot"])


def _retire_stragglers(conversation: ConversationView, signal: Mapping[str, Any]) -> Step | None:
    """Retires slow nodes after inspecting them, never the last one, and not while the rule replaces nodes itself."""
    pool = conversation.pool(signal["pool"])
    if pool is None or not _is_trainer_waiting(conversation) or _has_proposal(pool):
        return None
    max_retired = _most_retired(pool)
    if max_retired < 1 or {"replacing", "retiring"} & set(pool["rule_reasons"]):
        return None
    replies = conversation.answered_calls("fleet_nodes")
    if not replies:
        return conversation.call("fleet_nodes", pool=signal["pool"], filter="straggler", sort="speed", limit=10)
    slow = [node["node"] for _, reply in replies for node in reply.get("nodes", ()) if node["pool"] == pool["pool"]]
    planned = {
        call.arguments["pool"] for call, _ in conversation.answered_calls("fleet_plan") if call.arguments is not None
    }
    if not slow or signal["pool"] in planned:
        return None
    reason = f"{signal['node']} does {signal['value']:g} of the speed of the same hardware"
    return conversation.call("fleet_plan", pool=signal["pool"], target=None, retire=slow[:max_retired], reason=reason)


def _most_retired(pool: Mapping[str, Any]) -> int:
    """Nodes that may be retired without a person: one ready node stays, and earlier ones are replaced first."""
    present = _nodes_present_or_requested(pool)
    rule = pool["rule_target"] if pool["rule_target"] is not None else present
    return int(
        min(
            MAX_MOVED_NODES,
            pool["nodes"].get("ready", 0) - 1,
            present - pool["min_nodes"],
            present + MAX_MOVED_NODES - rule,
        )
    )


def _escalate(conversation: ConversationView, signal: Mapping[str, Any]) -> Step | None:
    """Escalates limits that people set, and missing reports."""
    limits = sorted(set(signal.get("limits", ["the report is old"])) - OWN_LIMITS)
    if conversation.answered_calls("fleet_escalate") or not limits:
        return None
    limit_names = ", ".join(limits)
    return conversation.call(
        "fleet_escalate",
        severity="warning",
        text=f"{signal['signal'].replace('_', ' ')} ({signal['value']:g}): {limit_names}",
    )


def baseline_tactic(signal: Mapping[str, Any]) -> str:
    """Returns the tactic of the baseline for a signal."""
    return BY_FAULT.get(signal.get("fault", ""), _BY_SIGNAL.get(signal["signal"], "nothing"))


def _nothing(conversation: ConversationView, signal: Mapping[str, Any]) -> Step | None:
    return None


TACTICS: Mapping[str, Tactic] = {
    "nothing": _nothing,
    "move": _move_elsewhere,
    "short": _short,
    "retire": _retire_stragglers,
    "escalate": _escalate,
    "tell": escalate_fault,
    **{tactic: change_run(tactic) for tactic in REASONS},
}
"""Tactics by name."""
RUN_TACTICS = frozenset({"tell", *REASONS})
"""Tactics for faults of learning; the others are for signals of pools."""
_BY_SIGNAL = {
    "launch_failures": "move",
    "preemption_wave": "move",
    "band_breach": "short",
    "straggler": "retire",
    "limit_reached": "escalate",
    "learning_fault": "tell",
    "no_report": "escalate",
}
_NEEDS = {"move": "pool", "short": "pool", "retire": "node"}
"""Field of a signal that a tactic reads."""


def _fits(signal: Mapping[str, Any], tactic: str) -> bool:
    """True if the tactic can answer the signal: a model may choose any."""
    return ("fault" in signal) == (tactic in RUN_TACTICS) and _NEEDS.get(tactic, "signal") in signal


def _note(conversation: ConversationView) -> str:
    signals = ", ".join(sorted({signal["signal"] for signal in conversation.signals})) or "nothing"
    outcomes = [reply.get("outcome") for _, reply in conversation.answered_calls("fleet_apply")]
    done = ", ".join(str(outcome) for outcome in outcomes) if outcomes else "nothing was changed"
    return f"Signals: {signals}. Done: {done}. The rule continues."
