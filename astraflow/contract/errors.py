"""The tree of errors: a type exists when a caller can do something different about it.

AstraFlowError
├── InvalidInput          fix what was sent; do not retry
├── NotAuthenticated      the token is missing or wrong
├── NotPermitted          the token is right, the action is not allowed to it
│   └── PlanRefused       the guard says no to a plan; it has what the guard was told
├── RateLimited           asked too often: wait as long as it says, then ask again
├── ProtocolMismatch      the peer speaks another version of the protocol: upgrade one of the two
├── UnknownNode           the node was forgotten: join again
├── UnknownPolicy         no such policy in this run
├── UnknownVersion        the version is not (or no longer) kept: plan the transfer again
├── RunComplete           the run has reached its stop condition: end with exit code 0
├── Conflict              somebody else was first: read again, then decide
├── CorruptData           bytes do not match their checksum or hash: fetch again
├── NotTrusted            weights that the run's key did not sign: do not use them, find out who offers them
├── StorageFull           no room on the disk: free some, the service carries on by itself
├── Unavailable           the peer cannot be reached or is stopping: retry with backoff
├── DeadlineExceeded      no answer in time: retry
└── InternalError         a defect on the other side; details are in its log
"""


class AstraFlowError(Exception):
    """Base of everything AstraFlow raises on purpose. The message is written for a person who can act on it."""


class InvalidInput(AstraFlowError):
    """What was given breaks a rule; the message names the rule."""


class NotAuthenticated(AstraFlowError):
    """The run token is missing or wrong."""


class NotPermitted(AstraFlowError):
    """The caller is known and may not do this."""


class PlanRefused(NotPermitted):
    """The guard does not let a plan be applied, or not by this caller; nothing was done."""

    def __init__(self, message: str, *, guard_json: str = "") -> None:
        """guard_json: all that the guard was told then, so that it can be asked again."""
        super().__init__(message)
        self.guard_json = guard_json


class RateLimited(AstraFlowError):
    """The caller asks too often, or was wrong too often; the message says for how long to wait."""


class ProtocolMismatch(AstraFlowError):
    """The peer speaks another version of the protocol."""


class UnknownNode(AstraFlowError):
    """The node id is not registered (expired, drained or from before a restart): join again."""


class UnknownPolicy(AstraFlowError):
    """The run has no such policy."""


class UnknownVersion(AstraFlowError):
    """The weight store does not keep this version."""


class RunComplete(AstraFlowError):
    """The run has reached its stop condition. A trainer or node that is told so ends with exit code 0."""


class Conflict(AstraFlowError):
    """The state changed under the caller."""


class CorruptData(AstraFlowError):
    """Bytes do not match their checksum, hash or format."""


class NotTrusted(AstraFlowError):
    """Weights are unsigned, altered, or signed by another key than the run's."""


class StorageFull(AstraFlowError):
    """The disk has no room for what must be made durable."""


class Unavailable(AstraFlowError):
    """The peer cannot be reached, or is stopping."""


class DeadlineExceeded(AstraFlowError):
    """No answer within the deadline."""


class InternalError(AstraFlowError):
    """A defect on the other side."""
