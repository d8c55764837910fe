"""Kinds of records: label, topics, meaning, and the template of the text with the values that it needs.

A new kind is one member here and the line that records it. Templates are rendered by `astraflow.contract.records`:

- `{silent_s:.0f}` is a number, `{task}` a text, `{nodes:node}` a count with its noun: "1 node", "2 nodes".
- `{cause}` is the text of the record's cause in `CAUSES`, `{reason}` the reason that the actor gave.
- A part in brackets is left out where one of its values is absent.
"""

from dataclasses import KW_ONLY, dataclass, fields
from enum import Enum
from functools import partial
from typing import Any, Self


class FactEnum(Enum):
    """Enum of data classes: the first field of one is the value of its member, and the others are its attributes."""

    def __new__(cls, facts: Any) -> Self:
        member = object.__new__(cls)
        first, *others = fields(facts)
        member._value_ = getattr(facts, first.name)
        for field in others:
            setattr(member, field.name, getattr(facts, field.name))
        return member


class Severity(Enum):
    """Urgency of a record for a person."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Topic(Enum):
    """Topic by which lists of events are filtered; in this order."""

    FLEET = "Fleet"
    NODES = "Nodes"
    LEARNING = "Learning"
    PROBLEMS = "Problems"
    ACCESS = "Access"


@dataclass(frozen=True, slots=True)
class Kind:
    """Facts of one kind."""

    name: str
    meaning: str
    """When it is recorded, as a sentence."""
    _: KW_ONLY
    subject: str
    """Noun of what `Record.subject` names."""
    topics: tuple[Topic, ...] = ()
    """Topics of an event; empty for an event of the service itself, and for decisions."""
    template: str = ""
    """Text without actor and reason."""
    because: str = ""
    """Cause of the text, as a clause; lists show it once for several records that share it."""
    routine: str = ""
    """Label of several events of a healthy run, which lists show as one line with a count; empty for other kinds."""
    plural: str = ""
    """Label of several events of a burst; empty for a kind whose events stay single, or are routine."""
    label: str = ""
    """Display name; empty: the name in words."""
    is_decision: bool = False
    """True for an entry of the fleet service's audit log, False for an event of a run."""


_FLEET, _NODES, _LEARNING, _PROBLEMS, _ACCESS = Topic


_target = partial(Kind, topics=(_FLEET,), subject="pool")
_node = partial(Kind, topics=(_NODES,), subject="node")
_bad_node = partial(Kind, topics=(_NODES, _PROBLEMS), subject="node")
_policy = partial(Kind, topics=(_LEARNING,), subject="policy")
_bad_policy = partial(Kind, topics=(_LEARNING, _PROBLEMS), subject="policy")
_flow = partial(Kind, topics=(_LEARNING,), subject="flow")
_bad_flow = partial(Kind, topics=(_LEARNING, _PROBLEMS), subject="flow")
_plugins = partial(Kind, topics=(_LEARNING,), subject="flow or policy")
_evaluation = partial(Kind, topics=(_LEARNING,), subject="evaluation")
_token = partial(Kind, topics=(_ACCESS,), subject="token")
_bad_run = partial(Kind, topics=(_PROBLEMS,), subject="run")
_decision = partial(Kind, subject="pool", is_decision=True)


class RecordKind(FactEnum):
    """All kinds, events by topic, then decisions of the fleet service."""

    TARGET_MOVED = _target(
        "target_moved",
        "The recommended size of the pool changed.",
        template="{before:.0f} to {target:node}",
        because="{cause}[; held back by {limits:words}]",
    )
    TARGET_LIMITED = _target(
        "target_limited",
        "A limit began to keep the recommended size away from the demand.",
        template="stay at {target:node}",
        because="{cause}[; held back by {limits:words}]",
        label="Held at a limit",
    )
    LIMIT_ENDED = _target(
        "limit_ended",
        "A limit of the recommended size no longer has an effect.",
        template="the target is {target:node}",
        because="no longer held back by {limit:words}, after {minutes:minute}",
        label="Limit ended",
    )
    NODE_JOINED = _node(
        "node_joined", "A node joined the run.", template="{name}, pool {pool}, engine {engine}", routine="nodes joined"
    )
    NODE_LEFT = _node(
        "node_left",
        "A node left the run after it had finished or returned its tasks.",
        template="{reason}; {tasks:task} returned",
        routine="nodes left",
    )
    NODE_LOST = Kind(
        "node_lost",
        "A node sent no heartbeat for too long. Its tasks return to the queue.",
        topics=(_FLEET, _NODES, _PROBLEMS),
        subject="node",
        template="no heartbeat for {silent_s:.0f} s; its tasks are requeued",
        plural="nodes lost",
    )
    NODE_DRAINING = _node(
        "node_draining",
        "A node announced that it finishes its tasks and leaves, for example because it is preempted.",
        template="{reason}",
        routine="nodes draining",
    )
    NODE_DRAINED = Kind(
        "node_drained",
        "A person or a program requested that the node finishes its tasks and leaves.",
        topics=(_FLEET, _NODES),
        subject="node",
        template="[within {deadline_s:g} s]",
        routine="drains requested",
        label="Drain requested",
    )
    NODE_REFUSED = _bad_node(
        "node_refused",
        "A caller with another credential used the name or the id of a node.",
        template="a caller of pool {pool} used its {identity} with another credential",
        plural="nodes refused",
    )
    LEASES_EXPIRED = _bad_node(
        "leases_expired",
        "A node did not renew leases in time, or kept tasks for too long. They return to the queue.",
        template="[{leases:lease} expired; the tasks are requeued][{tasks:task} held for {held_s:.0f} s without a "
        "result (it has returned {results:.0f}); they are leased again]",
        plural="nodes with expired leases",
    )
    PUSH_REFUSED = _bad_node(
        "push_refused",
        "A result or handed-back tokens were not accepted: they break a limit, such as the range of rewards "
        "or the vocabulary, their versions are invalid, or the node never held the task.",
        template="[{task}: ]{error}[ (and {others:.0f} others of {results:.0f} results)]",
        plural="results refused",
    )
    LEASES_WITHHELD = _bad_node(
        "leases_withheld",
        "Several results of a node in a row broke limits. Its tasks return to the queue, and for a time that "
        "doubles with each further refusal it gets none; then one at a time until a result is accepted.",
        template="no tasks for {pause_s:g} s, because its results break limits; {tasks:task} requeued",
        plural="nodes without tasks",
    )
    TRAINER_ATTACHED = _policy(
        "trainer_attached",
        "A trainer connected.",
        template="backend {backend} at version {version:.0f}[, batching {batching}]",
        routine="trainers attached",
    )
    TRAINER_STALLED = _bad_policy(
        "trainer_stalled",
        "The trainer made no step for too long although a batch is ready.",
        template="no step for {silent_s:.0f} s although a batch is ready",
    )
    TRAINER_RESUMED = _policy(
        "trainer_resumed", "A stalled trainer makes steps again.", template="the trainer makes steps again"
    )
    STREAM_STARVED = _bad_policy(
        "stream_starved",
        "The trainer has waited for a batch for too long.",
        template="the trainer has waited for {waited_s:.0f} s: {buffered:.0f} of {batch_groups:.0f} groups are "
        "buffered, issue headroom {headroom:.0f}",
    )
    STREAM_SUPPLIED = _policy(
        "stream_supplied", "A starved stream has a batch again.", template="the trainer has a batch again"
    )
    STALE_DROPS = _bad_policy(
        "stale_drops",
        "The share of groups that were too stale to be trained on rose above its threshold.",
        template="{share:.1%} of the latest groups were too stale to be trained on",
    )
    STALE_DROPS_RESOLVED = _policy(
        "stale_drops_resolved",
        "The share of groups that were too stale to be trained on fell below its threshold again.",
        template="{share:.1%} of the latest groups were too stale to be trained on",
    )
    BATCH_REDELIVERED = _bad_policy(
        "batch_redelivered",
        "A batch was delivered to its trainer again, because it was not reported as trained.",
        template="a batch was delivered to its trainer again",
    )
    STEP_FAILED = _bad_policy(
        "step_failed",
        "The step on a batch ended its trainer.",
        template="step {attempt:.0f} on batch {batch} ended its trainer: {error}",
        plural="steps failed",
    )
    BATCH_SET_ASIDE = _bad_policy(
        "batch_set_aside",
        "A batch is not delivered again, because its steps ended the trainer repeatedly.",
        template="batch {batch} is set aside, {rows:row} ({nodes}) [stored as {stored_as}][not stored: {store_error}]: "
        "{steps:step} on it ended the trainer: {error}",
        plural="batches set aside",
    )
    CHECKPOINT_SET_ASIDE = _bad_policy(
        "checkpoint_set_aside",
        "A trainer could not read its newest checkpoint and goes on from an older one.",
        template="{error}",
        plural="checkpoints set aside",
    )
    LEARNING_FAULT = _bad_policy(
        "learning_fault",
        "The examination of learning found a fault; see the run doctor for its threshold and remedy.",
        template="{cause}",
    )
    LEARNING_FAULT_OVER = _policy(
        "learning_fault_over", "A fault of learning is no longer found.", template="no longer: {cause}"
    )
    PROMPT_UNUSABLE = _bad_flow(
        "prompt_unusable",
        "A row of the flow's dataset is no prompt, and was left out.",
        template="{error}",
        plural="unusable prompts",
    )
    FLOW_FAILING = _bad_flow(
        "flow_failing",
        "The share of failed episodes of the flow rose above its threshold.",
        template="{share:.0%} of the latest episodes failed[: {error}]",
    )
    FLOW_RECOVERED = _flow(
        "flow_recovered",
        "The share of failed episodes of the flow fell below its threshold again.",
        template="{share:.0%} of the latest episodes failed",
    )
    GROUP_REWARD_FAILED = _bad_flow(
        "group_reward_failed",
        "A reward of whole groups raised an error.",
        template="{group}, attempt {attempt:.0f}: {error}",
    )
    FLOW_PAUSED = _flow("flow_paused", "A person or a program paused the issue of the flow's groups.")
    FLOW_RESUMED = _flow("flow_resumed", "A person or a program resumed the issue of the flow's groups.")
    PLUGIN_FILE_LOADED = _plugins(
        "plugin_file_loaded",
        "An operator's change of plugins imported a Python file in the process of dataflow.",
        template="{file}",
    )
    PLUGINS_PLANNED = _plugins(
        "plugins_planned",
        "A change of selector, filters or sampler was accepted; it takes effect with the next version.",
        template="{slot} {plugins} from the next version on",
    )
    PLUGINS_CHANGED = _plugins(
        "plugins_changed",
        "A planned change of selector, filters or sampler took effect.",
        template="{slot} {plugins} is active[; these start without state, because the old state does not fit: "
        "{restarted}]",
    )
    PLUGINS_UNCHANGED = _plugins(
        "plugins_unchanged",
        "A requested change of selector, filters or sampler named what is active already.",
        template="{slot} {plugins} stays",
    )
    EVALUATION_REQUESTED = _evaluation("evaluation_requested", "A person or a program requested a round.")
    EVALUATION_STARTED = _evaluation(
        "evaluation_started", "A round began.", template="round {round:.0f}, {versions}", routine="evaluations started"
    )
    EVALUATION_DONE = _evaluation(
        "evaluation_done",
        "A round ended.",
        template="round {round:.0f}, {versions}: {scores}",
        routine="evaluations done",
    )
    EVALUATION_STOPPED = _evaluation(
        "evaluation_stopped", "A person or a program ended a round early.", template="round {round:.0f}"
    )
    STOP_CONDITION_MET = _policy(
        "stop_condition_met", "The run met its stop condition and continues.", template="{condition}"
    )
    RUN_COMPLETED = _policy(
        "run_completed", "The run met its stop condition and serves no more tasks and batches.", template="{condition}"
    )
    PROBLEM = _bad_run("problem", "A problem began that needs action.", template="{cause}")
    PROBLEM_RESOLVED = _bad_run("problem_resolved", "A problem no longer exists.", template="resolved: {cause}")
    JOIN_TOKEN_MINTED = Kind(
        "join_token_minted",
        "A person or a program created a join token.",
        topics=(_ACCESS,),
        subject="pool or policy",
        template="{grant}",
        routine="join tokens issued",
        label="Join token issued",
    )
    JOIN_TOKEN_USED = _token(
        "join_token_used",
        "A process exchanged a join token for a credential.",
        template="by {role} {name}",
        routine="join tokens used",
    )
    JOIN_TOKEN_REVOKED = _token("join_token_revoked", "A person or a program revoked a join token before its end.")
    JOIN_TOKEN_REFUSED = Kind(
        "join_token_refused",
        "A process presented a join token that is unknown, used, revoked or expired.",
        topics=(_PROBLEMS, _ACCESS),
        subject="caller",
        template="{error}",
        plural="join tokens refused",
    )
    CREDENTIAL_REVOKED = Kind(
        "credential_revoked",
        "A credential is no longer valid: it was revoked, or its node left or restarted.",
        topics=(_ACCESS,),
        subject="holder",
        template="[{role}][the node {cause}]",
        routine="credentials revoked",
    )
    RUN_SUSPENDED = _bad_run(
        "run_suspended",
        "The dataflow service itself did not run for a while: its process was stopped, or its machine slept. "
        "Leases and the time without heartbeats are extended by this time, so that no node is lost for it.",
        template="the service did not run for {suspended_s:.0f} s: its process was stopped, the machine slept or was "
        "overloaded, or its clock was set ahead; leases are extended",
        label="Suspended",
    )
    RECORDS_SET_ASIDE = _bad_run(
        "records_set_aside",
        "Stored records could not be read at the start of the dataflow service, which continues without them.",
        template="{records:stored record} could not be read and are set aside ({counts}), [stored as {stored_as}][not "
        "stored: {store_error}]; the first is {first}",
    )
    LOAD_CHANGED = Kind(
        "load_changed",
        "The script of the simulated engines changed the length of their replies.",
        topics=(_FLEET,),
        subject="run",
        template="simulated load, by script: replies are {factor:.2f} times as long as at the start, instead of "
        "{before:.2f} times",
    )
    SERVICE_STARTED = Kind(
        "service_started",
        "The dataflow service started or restarted.",
        topics=(),
        subject="run",
        template="dataflow at {address}",
    )
    REPORTS_SKIPPED = _bad_run(
        "reports_skipped",
        "The page shows a run that has ended, without some recorded reports, which are invalid.",
        template="{reports:recorded report} left out, because invalid; first cause: {error}",
    )
    APPLY = _decision(
        "apply",
        "A plan was applied.",
        template="[from {before:.0f} to {after:node}][{change}][, {launched:.0f} launched][, {drained:.0f} drained]"
        "[, {terminated:.0f} terminated][, no node is removed for {hold_minutes:minute}][, approved by {approver}]"
        "[, applied by {applier}]",
        label="Applied",
    )
    REFUSE = _decision("refuse", "The guard refused to apply a plan.", template="{text}", label="Refused")
    PROPOSE = _decision(
        "propose",
        "A plan waits for the approval of a person.",
        template="[proposal of {target:node}, currently {nodes:.0f}][proposal: {change}]",
        label="Proposed",
    )
    REJECT = _decision("reject", "A person rejected a proposal.", template="plan {plan} is rejected", label="Rejected")
    SPEC = _decision(
        "spec",
        "A pool was created, or its configuration changed.",
        template="pool {change}[: {min_nodes:.0f} to {max_nodes:node}, mode {mode}]",
        label="Changed",
    )
    HOLD = _decision(
        "hold",
        "A hold began or ended, during which no node of the pool is removed.",
        template="hold [for {minutes:minute}: no node is removed][{state}]",
        label="Hold",
    )
    KILL_SWITCH = _decision("kill_switch", "The scope of the kill switch changed.", subject="fleet", template="{cause}")
    MAINTAINER_MODE = _decision(
        "maintainer_mode",
        "A person set the mode of the maintainer.",
        subject="fleet",
        template="the maintainer is in mode {mode}",
        label="Mode",
    )
    MAINTAINER_WAKE = _decision(
        "maintainer_wake",
        "A person requested a wake of the maintainer.",
        subject="fleet",
        template="the maintainer wakes once without a signal",
        label="Wake",
    )
    LAUNCH_FAILED = _decision(
        "launch_failed",
        "A launch ended before its node was ready.",
        template="launch {launch} failed, {failures:.0f} in a row[: {error}]",
    )
    ORPHAN = _decision("orphan", "An instance without a live launch was adopted or terminated.", template="{cause}")
    FAULT = _decision(
        "fault",
        "A person injected a fault.",
        template="fault injection: {lost:.0f} of {nodes:node} terminated without notice",
    )
    ALARM = _decision("alarm", "A condition of which people should know began.", template="{cause}")
    ALARM_OVER = _decision(
        "alarm_over", "Such a condition ended.", template="{reason}: the alarm has ended", label="Alarm cleared"
    )
    ESCALATE = _decision("escalate", "An agent notified people.", template="{reason}", label="Escalated")
    NOTE = _decision("note", "A person or an agent left a note.", template="{text}")

    topics: tuple[Topic, ...]
    subject: str
    meaning: str
    template: str
    because: str
    routine: str
    plural: str
    label: str
    is_decision: bool
    _value_: str

    def __init__(self, kind: Any) -> None:
        self.label = kind.label or kind.name.replace("_", " ").capitalize()

    @property
    def severity(self) -> Severity:
        """Usual severity of its records."""
        return Severity.WARNING if Topic.PROBLEMS in self.topics else Severity.INFO
