"""The good character: what the system text asks for, by a few rules of thumb. Where it has nothing better, it leaves it
to the rule."""

from collections.abc import Callable, Mapping
from typing import Any

from maintainer.llm.base import ToolCall
from maintainer.llm.talk import Step, Talk

MOST_MOVED = 2
"""Nodes at once."""
LATE = 1.25
"""Times the usual delay after which a node that was launched is late."""
LATE_SPOT = 0.9
"""The same of spot nodes, which nobody has promised: the rule soon gives such an order up for the next of its kind."""
WAITS = 0.03
"""Share of waiting from which a trainer is short of data."""
LONGEST_HOLD_MINUTES = 60
ENOUGH = 0.8
"""Capacity over demand below which nodes are missing: the rest is noise."""
QUESTION = "what would it cost, and may it be"
OWN_CAPS = frozenset({"action_budget", "mode"})
"""Caps that people need not hear of."""


def good(talk: Talk) -> list[Step]:
    """Moves work where launches succeed, retires what is slow, tells people what only they can do; else nothing."""
    for call, plan in talk.made("fleet_plan"):
        tried = {one.arguments["plan_id"] for one, _ in talk.made("fleet_apply") if one.arguments is not None}
        is_open = plan.get("verdict") in ("allowed", "needs_approval") and plan["plan_id"] not in tried
        if is_open and not _is_question(call):
            return [talk.call("fleet_apply", plan_id=plan["plan_id"], idempotency_key=f"apply-{call.id}")]
    for call, reply in talk.made("fleet_apply"):
        asked = (call.arguments or {})["plan_id"]
        plan = next(one for _, one in talk.made("fleet_plan") if one.get("plan_id") == asked)
        if reply.get("outcome") == "applied" and reply["launched"] and not talk.made("fleet_hold"):
            minutes = min(LONGEST_HOLD_MINUTES, 1 + int(plan["eta_s"] // 30))  # twice as long as launches take
            reason = "what was launched here is kept until it works: before that the rule does not see it"
            return [talk.call("fleet_hold", pool=plan["pool"], minutes=minutes, reason=reason)]
    for signal in talk.signals:
        step = _ANSWERS.get(signal["signal"], _nothing)(talk, signal)
        if step is not None:
            return [step]
    return [_note(talk)]


def _elsewhere(talk: Talk, signal: Mapping[str, Any]) -> Step | None:
    """Launches fail or nodes are taken here: have what is missing elsewhere, and tell people why."""
    pool = talk.pool(signal["pool"])
    if pool is None:
        return None
    seen = _looked_at(talk, pool)
    if seen is None:
        return talk.call("fleet_report", pool=pool["pool"], format="detailed")
    missing = min(MOST_MOVED, (pool["rule_target"] or pool["target"]) - pool["nodes"].get("ready", 0))
    other = _other(talk, pool)
    if other is not None and missing > 0 and _has_room(other) and _is_short(seen) and not _has_moved(talk):
        there = _there(other)
        rule = other["rule_target"] if other["rule_target"] is not None else there
        target = min(other["max_nodes"], rule + MOST_MOVED, max(there, rule) + missing)
        reason = f"{signal['signal']} in {pool['pool']} ({signal['value']:g}): nodes here instead"
        return talk.call("fleet_plan", pool=other["pool"], target=target, retire=None, reason=reason)
    if signal["signal"] == "launch_failures" and not talk.made("fleet_escalate"):
        causes = ", ".join(sorted(pool["failure_causes"])) or "unknown"
        text = f"{pool['launch_failures_1h']} launches failed lately in {pool['pool']}; cause: {causes}"
        return talk.call("fleet_escalate", severity="warning", text=text)
    return None


def _short(talk: Talk, signal: Mapping[str, Any]) -> Step | None:
    """Too few nodes work: what was ordered does not come, or cannot be paid."""
    pool = talk.pool(signal["pool"])
    if pool is None or signal["value"] >= 0:
        return None
    is_ordered = (pool["rule_target"] or 0) <= pool["target"]
    return _overdue(talk, signal, pool) if is_ordered else _unaffordable(talk, signal, pool)


def _overdue(talk: Talk, signal: Mapping[str, Any], pool: Mapping[str, Any]) -> Step | None:
    """Nodes are on their way: have them elsewhere if something is wrong with them, or they are late."""
    if _there(pool) == pool["nodes"].get("ready", 0):
        return None
    looked = talk.asked("fleet_nodes", pool=pool["pool"], filter="starting")
    if looked is None:
        return talk.call("fleet_nodes", pool=pool["pool"], filter="starting", sort="age", limit=10)
    late_s = (LATE_SPOT if pool["is_spot"] else LATE) * pool["launch_delay_s"]
    ill = [node for node in looked.get("nodes", ()) if node["message"] is not None or node["age_s"] > late_s]
    return _elsewhere(talk, signal) if ill else None


def _unaffordable(talk: Talk, signal: Mapping[str, Any], pool: Mapping[str, Any]) -> Step | None:
    """The rule's target is not reached: ask what more nodes would cost, and have them elsewhere if it is too much."""
    seen = _looked_at(talk, pool)
    if seen is None:
        return talk.call("fleet_report", pool=pool["pool"], format="detailed")
    if seen["usd_per_hour_max"] is None or not _is_short(seen):
        return None
    asked = next((plan for call, plan in talk.made("fleet_plan") if _is_question(call, pool["pool"])), None)
    if asked is None:
        target = min(pool["rule_target"], _there(pool) + MOST_MOVED)
        return talk.call("fleet_plan", pool=pool["pool"], target=target, retire=None, reason=QUESTION)
    is_too_dear = any("usd" in finding["code"] for finding in asked.get("findings", ()))
    return _elsewhere(talk, signal) if is_too_dear else None


def _has_room(pool: Mapping[str, Any]) -> bool:
    """Whether nodes may be added without a person: the guard allows a few beyond the rule's target."""
    if _is_before_people(pool):
        return False
    rule = pool["rule_target"] if pool["rule_target"] is not None else _there(pool)
    return bool(_there(pool) < min(pool["max_nodes"], rule + MOST_MOVED))


def _is_before_people(pool: Mapping[str, Any]) -> bool:
    """Whether a plan for it waits for a person, or was rejected lately."""
    return pool["proposal_state"] in ("waiting", "rejected")


def _has_moved(talk: Talk) -> bool:
    """One plan that counts is enough for a wake."""
    return any(not _is_question(call) for call, _ in talk.made("fleet_plan"))


def _is_question(call: ToolCall, pool: str | None = None) -> bool:
    """A plan that is made to learn what the guard says of it, and is not applied."""
    given = call.arguments or {}
    return given.get("reason") == QUESTION and pool in (None, given.get("pool"))


def _looked_at(talk: Talk, pool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Its details, once they were asked for."""
    found = [one for _, reply in talk.made("fleet_report") for one in reply.get("details", ())]
    return next((one for one in found if one["pool"] == pool["pool"]), None)


def _is_short(details: Mapping[str, Any]) -> bool:
    """Whether nodes that work produce less than trainers need: a replacement that does not come is no lack."""
    inputs = details["inputs"]
    return bool(inputs.get("capacity_groups_per_s", 0.0) < ENOUGH * inputs.get("demand_groups_per_s", 0.0))


def _there(pool: Mapping[str, Any]) -> int:
    """Nodes that are there or ordered."""
    return sum(count for state, count in pool["nodes"].items() if state not in ("draining", "retiring", "gone"))


def _waits(talk: Talk) -> bool:
    """Whether a trainer is short of data."""
    return any(stream["wait_fraction"] >= WAITS for stream in talk.report["streams"])


def _other(talk: Talk, pool: Mapping[str, Any]) -> dict[str, Any] | None:
    """The cheapest pool that works and has room; one that does not share the region or the market, if there is one."""
    sound = [
        one
        for one in talk.report["pools"]
        if one["pool"] != pool["pool"]
        and one["mode"] != "off"
        and not {"launch_failures", "preemption_wave"} & set(one["signals"])
        and one["breaker_left_s"] == 0
        and one["target"] < one["max_nodes"]
    ]
    return min(
        sound, key=lambda one: (_is_alike(one, pool), one["usd_per_node_hour"] or 0.0, one["pool"]), default=None
    )


def _is_alike(one: Mapping[str, Any], pool: Mapping[str, Any]) -> bool:
    """Whether what befalls one is likely to befall the other: quota is a region's, spot capacity is a market's."""
    return bool(one["region"] and one["region"] == pool["region"]) or bool(one["is_spot"] and pool["is_spot"])


def _retired(talk: Talk, signal: Mapping[str, Any]) -> Step | None:
    """Slow nodes go when they have been looked at, are not the last, and the rule does not see to it by itself."""
    pool = talk.pool(signal["pool"])
    if pool is None or not _waits(talk) or _is_before_people(pool):
        return None
    most = _most_retired(pool)
    if most < 1 or {"replacing", "retiring"} & set(pool["rule_reasons"]):
        return None
    looked = talk.made("fleet_nodes")
    if not looked:
        return talk.call("fleet_nodes", pool=signal["pool"], filter="straggler", sort="speed", limit=10)
    slow = [node["node"] for _, reply in looked for node in reply.get("nodes", ()) if node["pool"] == pool["pool"]]
    planned = {call.arguments["pool"] for call, _ in talk.made("fleet_plan") if call.arguments is not None}
    if not slow or signal["pool"] in planned:
        return None
    reason = f"{signal['node']} does {signal['value']:g} of what its like do"
    return talk.call("fleet_plan", pool=signal["pool"], target=None, retire=slow[:most], reason=reason)


def _most_retired(pool: Mapping[str, Any]) -> int:
    """Nodes that may go without a person: one that works stays, and what went before is to be replaced first."""
    there = _there(pool)
    rule = pool["rule_target"] if pool["rule_target"] is not None else there
    return int(min(MOST_MOVED, pool["nodes"].get("ready", 0) - 1, there - pool["min_nodes"], there + MOST_MOVED - rule))


def _told(talk: Talk, signal: Mapping[str, Any]) -> Step | None:
    """People set bounds and budgets."""
    told = sorted(set(signal.get("caps", ["the report is old"])) - OWN_CAPS)
    if talk.made("fleet_escalate") or not told:
        return None
    caps = ", ".join(told)
    return talk.call("fleet_escalate", severity="warning", text=f"{signal['signal']} ({signal['value']:g}): {caps}")


def _nothing(talk: Talk, signal: Mapping[str, Any]) -> Step | None:
    return None


_ANSWERS: Mapping[str, Callable[[Talk, Mapping[str, Any]], Step | None]] = {
    "launch_failures": _elsewhere,
    "preemption_wave": _elsewhere,
    "band_breach": _short,
    "straggler": _retired,
    "cap_hit": _told,
    "blind": _told,
}


def _note(talk: Talk) -> str:
    why = ", ".join(sorted({signal["signal"] for signal in talk.signals})) or "nothing"
    outcomes = [reply.get("outcome") for _, reply in talk.made("fleet_apply")]
    done = ", ".join(str(outcome) for outcome in outcomes) if outcomes else "nothing was changed"
    return f"Seen: {why}. Done: {done}. The rule carries on."
