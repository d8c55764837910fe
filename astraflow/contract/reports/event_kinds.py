"""Kinds of events that dataflow records: labels, topics and meaning.

A third-party plugin may record other kinds, which are shown by their own name.
"""

from dataclasses import dataclass
from enum import Enum


class EventTopic(Enum):
    """Topic by which event lists are filtered; in this order."""

    FLEET = "Fleet"
    NODES = "Nodes"
    LEARNING = "Learning"
    PROBLEMS = "Problems"
    ACCESS = "Access"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKind:
    """Description of one value of `Event.kind`."""

    name: str
    topics: tuple[EventTopic, ...]
    """Empty for an event of the service itself."""
    subject: str
    """Noun of what `Event.subject` names."""
    meaning: str
    """When it is recorded, as a sentence."""
    is_routine: bool = False
    """True for events of a healthy run, which lists show as one line with a count."""
    plural: str = ""
    """Label of several events; empty for a kind whose events stay single."""
    label: str = ""
    """Display name; empty: the name in words."""


_FLEET, _NODES, _LEARNING, _PROBLEMS, _ACCESS = EventTopic

EVENT_KINDS = (
    EventKind(
        name="target_moved",
        topics=(_FLEET,),
        subject="pool",
        meaning="The recommended size of the pool changed. The message has the reason and the limits in effect.",
    ),
    EventKind(
        name="target_limited",
        topics=(_FLEET,),
        subject="pool",
        meaning="A limit began to keep the recommended size away from the demand.",
        label="Limited",
    ),
    EventKind(
        name="limit_ended",
        topics=(_FLEET,),
        subject="pool",
        meaning="A limit of the recommended size no longer has an effect.",
        label="Limit lifted",
    ),
    EventKind(
        name="node_joined",
        topics=(_NODES,),
        subject="node",
        meaning="A node joined the run.",
        is_routine=True,
        plural="nodes joined",
    ),
    EventKind(
        name="node_left",
        topics=(_NODES,),
        subject="node",
        meaning="A node left the run after it had finished or returned its tasks. The message has the reason.",
        is_routine=True,
        plural="nodes left",
    ),
    EventKind(
        name="node_lost",
        topics=(_FLEET, _NODES, _PROBLEMS),
        subject="node",
        meaning="A node sent no heartbeat for too long. Its tasks return to the queue.",
        plural="nodes lost",
    ),
    EventKind(
        name="node_draining",
        topics=(_NODES,),
        subject="node",
        meaning="A node announced that it finishes its tasks and leaves, for example because it is preempted.",
        is_routine=True,
        plural="nodes draining",
    ),
    EventKind(
        name="node_drained",
        topics=(_FLEET, _NODES),
        subject="node",
        meaning="A person or a program requested that the node finishes its tasks and leaves.",
        is_routine=True,
        plural="drains requested",
        label="Drain requested",
    ),
    EventKind(
        name="node_refused",
        topics=(_NODES, _PROBLEMS),
        subject="node",
        meaning="A caller with another credential used the name or the id of a node.",
        plural="nodes refused",
    ),
    EventKind(
        name="leases_expired",
        topics=(_NODES, _PROBLEMS),
        subject="node",
        meaning="A node did not renew leases in time, or kept tasks for too long. They return to the queue.",
        plural="nodes with expired leases",
    ),
    EventKind(
        name="push_refused",
        topics=(_NODES, _PROBLEMS),
        subject="node",
        meaning="A result or handed-back tokens were not accepted: they break a limit, such as the range of rewards or "
        "the vocabulary, their versions are invalid, or the node never held the task.",
        plural="results refused",
    ),
    EventKind(
        name="leases_withheld",
        topics=(_NODES, _PROBLEMS),
        subject="node",
        meaning="Several results of a node in a row broke limits. Its tasks return to the queue, and for a time that "
        "doubles with each further refusal it gets none; then one at a time until a result is accepted.",
        plural="nodes without tasks",
    ),
    EventKind(
        name="trainer_attached",
        topics=(_LEARNING,),
        subject="policy",
        meaning="A trainer connected. The message has its backend and the version that it continues from.",
        is_routine=True,
        plural="trainers attached",
    ),
    EventKind(
        name="trainer_stalled",
        topics=(_LEARNING, _PROBLEMS),
        subject="policy",
        meaning="The trainer made no step for too long although a batch is ready.",
    ),
    EventKind(
        name="trainer_resumed", topics=(_LEARNING,), subject="policy", meaning="A stalled trainer makes steps again."
    ),
    EventKind(
        name="stream_starved",
        topics=(_LEARNING, _PROBLEMS),
        subject="policy",
        meaning="The trainer has waited for a batch for too long.",
    ),
    EventKind(
        name="stream_supplied", topics=(_LEARNING,), subject="policy", meaning="A starved stream has a batch again."
    ),
    EventKind(
        name="stale_drops",
        topics=(_LEARNING, _PROBLEMS),
        subject="policy",
        meaning="The share of groups that were too stale to be trained on rose above its threshold.",
    ),
    EventKind(
        name="stale_drops_resolved",
        topics=(_LEARNING,),
        subject="policy",
        meaning="The share of groups that were too stale to be trained on fell below its threshold again.",
    ),
    EventKind(
        name="batch_redelivered",
        topics=(_LEARNING, _PROBLEMS),
        subject="policy",
        meaning="A batch was delivered to its trainer again, because it was not reported as trained.",
    ),
    EventKind(
        name="step_failed",
        topics=(_LEARNING, _PROBLEMS),
        subject="policy",
        meaning="The step on a batch ended its trainer. The message has the batch and the error.",
        plural="steps failed",
    ),
    EventKind(
        name="batch_set_aside",
        topics=(_LEARNING, _PROBLEMS),
        subject="policy",
        meaning="A batch is not delivered again, because its steps ended the trainer repeatedly. The message has the "
        "batch, the nodes that generated its rows, the error, and the name under which the rows are stored.",
        plural="batches set aside",
    ),
    EventKind(
        name="checkpoint_set_aside",
        topics=(_LEARNING, _PROBLEMS),
        subject="policy",
        meaning="A trainer could not read its newest checkpoint and goes on from an older one. The message has the "
        "name under which the damaged one is kept, and the step from which training goes on.",
        plural="checkpoints set aside",
    ),
    EventKind(
        name="prompt_unusable",
        topics=(_LEARNING, _PROBLEMS),
        subject="flow",
        meaning="A row of the flow's dataset is no prompt, and was left out. The message has the row and the cause.",
        plural="unusable prompts",
    ),
    EventKind(
        name="flow_failing",
        topics=(_LEARNING, _PROBLEMS),
        subject="flow",
        meaning="The share of failed episodes of the flow rose above its threshold.",
    ),
    EventKind(
        name="flow_recovered",
        topics=(_LEARNING,),
        subject="flow",
        meaning="The share of failed episodes of the flow fell below its threshold again.",
    ),
    EventKind(
        name="group_reward_failed",
        topics=(_LEARNING, _PROBLEMS),
        subject="flow",
        meaning="A reward of whole groups raised an error. The message has the group, the attempt and the error.",
    ),
    EventKind(
        name="flow_paused",
        topics=(_LEARNING,),
        subject="flow",
        meaning="A person or a program paused the issue of the flow's groups.",
    ),
    EventKind(
        name="flow_resumed",
        topics=(_LEARNING,),
        subject="flow",
        meaning="A person or a program resumed the issue of the flow's groups.",
    ),
    EventKind(
        name="plugin_file_loaded",
        topics=(_LEARNING,),
        subject="flow or policy",
        meaning="An operator's change of plugins imported a Python file in the process of dataflow.",
    ),
    EventKind(
        name="plugins_planned",
        topics=(_LEARNING,),
        subject="flow or policy",
        meaning="A change of selector, filters or sampler was accepted; it takes effect with the next version.",
    ),
    EventKind(
        name="plugins_changed",
        topics=(_LEARNING,),
        subject="flow or policy",
        meaning="A planned change of selector, filters or sampler took effect.",
    ),
    EventKind(
        name="plugins_unchanged",
        topics=(_LEARNING,),
        subject="flow or policy",
        meaning="A requested change of selector, filters or sampler named what is active already.",
    ),
    EventKind(
        name="evaluation_requested",
        topics=(_LEARNING,),
        subject="evaluation",
        meaning="A person or a program requested a round.",
    ),
    EventKind(
        name="evaluation_started",
        topics=(_LEARNING,),
        subject="evaluation",
        meaning="A round began. The message has its versions and who requested it.",
        is_routine=True,
        plural="evaluations started",
    ),
    EventKind(
        name="evaluation_done",
        topics=(_LEARNING,),
        subject="evaluation",
        meaning="A round ended. The message has its scores.",
        is_routine=True,
        plural="evaluations done",
    ),
    EventKind(
        name="evaluation_stopped",
        topics=(_LEARNING,),
        subject="evaluation",
        meaning="A person or a program ended a round early.",
    ),
    EventKind(
        name="stop_condition_met",
        topics=(_LEARNING,),
        subject="policy",
        meaning="The run met its stop condition and continues.",
    ),
    EventKind(
        name="run_completed",
        topics=(_LEARNING,),
        subject="policy",
        meaning="The run met its stop condition and serves no more tasks and batches.",
    ),
    EventKind(
        name="problem",
        topics=(_PROBLEMS,),
        subject="run",
        meaning="A problem began that needs action. The message names cause and remedy.",
    ),
    EventKind(name="problem_resolved", topics=(_PROBLEMS,), subject="run", meaning="A problem no longer exists."),
    EventKind(
        name="join_token_minted",
        topics=(_ACCESS,),
        subject="pool or policy",
        meaning="A person or a program created a join token.",
        is_routine=True,
        plural="join tokens issued",
        label="Join token issued",
    ),
    EventKind(
        name="join_token_used",
        topics=(_ACCESS,),
        subject="token",
        meaning="A process exchanged a join token for a credential.",
        is_routine=True,
        plural="join tokens used",
    ),
    EventKind(
        name="join_token_revoked",
        topics=(_ACCESS,),
        subject="token",
        meaning="A person or a program revoked a join token before its end.",
    ),
    EventKind(
        name="join_token_refused",
        topics=(_PROBLEMS, _ACCESS),
        subject="caller",
        meaning="A process presented a join token that is unknown, used, revoked or expired.",
        plural="join tokens refused",
    ),
    EventKind(
        name="credential_revoked",
        topics=(_ACCESS,),
        subject="holder",
        meaning="A credential is no longer valid: it was revoked, or its node left or restarted.",
        is_routine=True,
        plural="credentials revoked",
        label="Credential revoked",
    ),
    EventKind(
        name="run_suspended",
        topics=(_PROBLEMS,),
        subject="run",
        meaning="The dataflow service itself did not run for a while: its process was stopped, or its machine slept. "
        "Leases and the time without heartbeats are extended by this time, so that no node is lost for it.",
        label="Suspended",
    ),
    EventKind(
        name="records_set_aside",
        topics=(_PROBLEMS,),
        subject="run",
        meaning="Stored records could not be read at the start of the dataflow service, which continues without them. "
        "The message has their kinds, the first error, and the name under which their bytes are stored.",
    ),
    EventKind(name="service_started", topics=(), subject="run", meaning="The dataflow service started or restarted."),
)
"""All kinds, by topic."""
