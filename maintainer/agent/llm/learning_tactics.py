"""Tactics for faults of learning: one change of the run, or a message to people."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from maintainer.agent.llm.conversation_view import ConversationView, Step

Tactic: TypeAlias = Callable[[ConversationView, Mapping[str, Any]], Step | None]
"""Returns the next call for a signal; None when nothing is left to do."""

RATE_FACTOR = 4.0
"""Factor of the learning rate of a fork."""
STUCK_FACTOR = 30.0
"""The same where updates are below the precision of the weights: orders of magnitude are missing."""
CURRICULUM = "curriculum"

REASONS = {
    "fork_up": "fork with a higher learning rate",
    "fork_down": "fork with a lower learning rate",
    "curriculum": "select prompts by their difficulty",
    "pause": "a person must look at the reward",
    "stop": "the policy learns what the reward pays and not the task",
    "evaluate": "the newest score is missing",
}
"""Changes of the run by tactic, as a reason for people says them."""

BY_FAULT = {
    **dict.fromkeys(("weights_stuck", "reward_stalled"), "fork_up"),
    **dict.fromkeys(
        ("reward_fell", "entropy_collapsed", "entropy_exploded", "gradient_spikes", "updates_skipped", "clipped"),
        "fork_down",
    ),
    **dict.fromkeys(("groups_failed", "prompts_dead"), "curriculum"),
    **dict.fromkeys(("reward_constant", "empty_rewarded", "term_unearned"), "pause"),
    "reward_hacked": "stop",
}
"""Tactic of the baseline by fault of learning; it tells people of all others."""


def change_run(tactic: str) -> Tactic:
    """Returns a tactic that plans one change of the run and, where it cannot, tells people."""

    def step(conversation: ConversationView, signal: Mapping[str, Any]) -> Step | None:
        doctor = conversation.first_reply("run_doctor")
        if doctor is None:
            return conversation.call("run_doctor", policy=None)
        if conversation.answered_calls("run_change") or doctor.get("proposal_state") in (
            "waiting",
            "rejected",
            "approved",
        ):
            return None
        fields = _fields(tactic, doctor, signal)
        if fields is None:
            return escalate_fault(conversation, signal)
        unset = dict.fromkeys(("flow", "policy", "slot", "kind", "learning_rate"))
        reason = f"{signal['fault']}, found at step {signal['value']:g}: {REASONS[tactic]}"
        return conversation.call("run_change", **unset | fields, reason=reason)

    return step


def _fields(tactic: str, doctor: Mapping[str, Any], signal: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the arguments of a change of the run; None if it is not possible, or made already."""
    flow = next((flow for flow in doctor.get("flows", ()) if not flow["is_paused"]), None)
    policies = doctor.get("policies", ())
    rate = next((policy["learning_rate"] for policy in policies if policy["policy"] == signal["policy"]), None)
    match tactic:
        case "fork_up" | "fork_down" if rate:
            up = STUCK_FACTOR if signal["fault"] == "weights_stuck" else RATE_FACTOR
            factor = up if tactic == "fork_up" else 1 / up
            learning_rate = float(f"{min(1.0, rate * factor):.3g}")
            return {"action": "fork", "policy": signal["policy"], "learning_rate": learning_rate}
        case "curriculum" if flow and flow["selector"] != CURRICULUM and CURRICULUM in doctor["plugins"]["selector"]:
            return {"action": "plugin", "flow": flow["flow"], "slot": "selector", "kind": CURRICULUM}
        case "pause" if flow:
            return {"action": "pause", "flow": flow["flow"]}
        case "stop":
            return {"action": "stop"}
        case "evaluate" if doctor.get("evaluations"):
            return {"action": "evaluate", "flow": doctor["evaluations"][0]["flow"]}
    return None


def escalate_fault(conversation: ConversationView, signal: Mapping[str, Any]) -> Step | None:
    """Tells people of a fault of learning that no change of the run mends."""
    if conversation.answered_calls("fleet_escalate"):
        return None
    text = f"the run does not learn as it should: {signal['fault']}, found at step {signal['value']:g}"
    return conversation.call("fleet_escalate", severity="warning", text=text)
