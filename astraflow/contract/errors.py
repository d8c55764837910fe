"""Error types. A type exists where a caller can act differently; a code identifies the cause.

AstraFlowError
├── InvalidInput          the input is invalid: fix it, do not retry
├── NotAuthenticated      the token is missing or wrong
├── NotPermitted          the token is valid but does not permit the action
│   └── PlanRefused       the guard refused a plan; carries the guard's inputs
├── RateLimited           too many requests: wait for the stated time, then retry
├── ProtocolMismatch      the peer uses another version of the protocol: upgrade one of the two
├── UnknownNode           the node is not registered: join again
├── UnknownPolicy         no such policy in this run
├── UnknownVersion        the version is not (or no longer) stored: plan the transfer again
├── RunComplete           the run has reached its stop condition: end with exit code 0
├── Conflict              the state changed since it was read: read again, then decide
├── CorruptData           bytes do not match their checksum or hash: fetch again
├── NotTrusted            weights that the run's key did not sign: do not use them, check their source
├── StorageFull           the disk is full: free space, the service resumes by itself
├── Unavailable           the peer cannot be reached or is stopping: retry with backoff
├── DeadlineExceeded      no answer in time: retry
└── InternalError         a defect on the other side; details are in its log

Messages have one form: `cannot <do what>: <cause>; <what to do>`. Codes are dotted lower-case words, the package first
(`recipe.unknown_setting`). A code keeps its meaning once it is published: programs and documents refer to it, while the
wording may change. `docs/reference/errors.md` lists all of them.
"""

import re

CODE = re.compile(r"[a-z][a-z0-9_]{0,39}(\.[a-z][a-z0-9_]{0,39}){0,3}")


class AstraFlowError(Exception):
    """Base of all errors that AstraFlow raises deliberately. The message addresses a person who can act on it."""

    def __init__(self, message: str = "", *, code: str = "") -> None:
        """code: cause of the error, matching `CODE`; by default the code of the type, such as `invalid_input`."""
        super().__init__(message)
        self.code = code or type_code(type(self))


def type_code(kind: type[AstraFlowError]) -> str:
    """Returns the code of a type: its name in lower case, words joined by underscores."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


class InvalidInput(AstraFlowError):
    """The input breaks a rule, which the message names."""


class NotAuthenticated(AstraFlowError):
    """The run token is missing or wrong."""


class NotPermitted(AstraFlowError):
    """The caller is authenticated but lacks the permission."""


class PlanRefused(NotPermitted):
    """The guard refuses to apply a plan, in general or for this caller; nothing was changed."""

    def __init__(self, message: str = "", *, code: str = "", guard_json: str = "") -> None:
        """guard_json: the guard's inputs as JSON, so that the decision can be replayed."""
        super().__init__(message, code=code)
        self.guard_json = guard_json


class RateLimited(AstraFlowError):
    """The caller sent too many requests or too many invalid credentials; the message states how long to wait."""


class ProtocolMismatch(AstraFlowError):
    """The peer uses another version of the protocol."""


class UnknownNode(AstraFlowError):
    """The node id is not registered (expired, drained or from before a restart): join again."""


class UnknownPolicy(AstraFlowError):
    """The run has no such policy."""


class UnknownVersion(AstraFlowError):
    """The weight store does not hold this version."""


class RunComplete(AstraFlowError):
    """The run has reached its stop condition. A trainer or node that receives this ends with exit code 0."""


class Conflict(AstraFlowError):
    """The state changed since the caller read it."""


class CorruptData(AstraFlowError):
    """Bytes do not match their checksum, hash or format."""


class NotTrusted(AstraFlowError):
    """Weights are unsigned, altered, or signed by a key other than the run's."""


class StorageFull(AstraFlowError):
    """The disk lacks space for data that must be durable."""


class Unavailable(AstraFlowError):
    """The peer is unreachable or stopping."""


class DeadlineExceeded(AstraFlowError):
    """No answer within the deadline."""


class InternalError(AstraFlowError):
    """A defect in the service that answered."""
