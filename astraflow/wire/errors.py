"""The one table between errors and gRPC statuses, so that a client raises what the server raised."""

import errno
from typing import Any

import grpc

from astraflow.contract import errors

ERROR_KEY = "astraflow-error"
"""Trailing metadata that carries the error's type name: several types share a status code."""

_TABLE: dict[type[errors.AstraFlowError], grpc.StatusCode] = {
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotAuthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.NotPermitted: grpc.StatusCode.PERMISSION_DENIED,
    errors.RateLimited: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ProtocolMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownNode: grpc.StatusCode.NOT_FOUND,
    errors.UnknownPolicy: grpc.StatusCode.NOT_FOUND,
    errors.UnknownVersion: grpc.StatusCode.NOT_FOUND,
    errors.RunComplete: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Conflict: grpc.StatusCode.ABORTED,
    errors.CorruptData: grpc.StatusCode.DATA_LOSS,
    errors.NotTrusted: grpc.StatusCode.PERMISSION_DENIED,
    errors.StorageFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}

_BY_NAME = {error.__name__: error for error in _TABLE}

_BY_CODE: dict[grpc.StatusCode, type[errors.AstraFlowError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidInput,
    grpc.StatusCode.UNAUTHENTICATED: errors.NotAuthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.NotPermitted,
    grpc.StatusCode.UNIMPLEMENTED: errors.ProtocolMismatch,
    grpc.StatusCode.DATA_LOSS: errors.CorruptData,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.InvalidInput,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.CANCELLED: errors.Unavailable,
    grpc.StatusCode.INTERNAL: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
}
"""For statuses that gRPC itself made: an oversized message is RESOURCE_EXHAUSTED, a stopping server cancels.

A stream that breaks while its requests are being written ends, now and then, as INTERNAL instead of UNAVAILABLE
(grpc/grpc issue 36066); the services' own INTERNAL carries its name.
"""


def to_status(problem: Exception) -> tuple[grpc.StatusCode, str, str]:
    """Code, message and type name for what a handler raised.

    A full disk is recognised wherever it surfaces. What is not in the table leaves as INTERNAL without details: they
    are in the server's log.
    """
    if is_disk_full(problem):
        problem = errors.StorageFull(
            "the disk is full: free some space; nothing acknowledged was lost and the service goes on by itself"
        )
    for kind in type(problem).__mro__:
        if kind in _TABLE:
            return _TABLE[kind], str(problem), kind.__name__
    return grpc.StatusCode.INTERNAL, "a defect in the service; its log has the details", errors.InternalError.__name__


def from_status(problem: grpc.aio.AioRpcError, *, peer: str) -> errors.AstraFlowError:
    """The error a client raises for a failed call to `peer`."""
    name = dict(_pairs(problem.trailing_metadata())).get(ERROR_KEY)
    message = problem.details() or problem.code().name
    if isinstance(name, str) and name in _BY_NAME:
        return _BY_NAME[name](message)
    kind = _BY_CODE.get(problem.code(), errors.InternalError)
    if kind is errors.Unavailable:
        message = f"{peer} cannot be reached ({message}): is the service running, and is the address right?"
    return kind(message)


def is_from_service(problem: grpc.aio.AioRpcError) -> bool:
    """Whether a service of ours said so, rather than gRPC on the way to one."""
    return ERROR_KEY in dict(_pairs(problem.trailing_metadata()))


def is_disk_full(problem: BaseException) -> bool:
    """Whether an error means that a disk has no room: from the operating system or from SQLite."""
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return getattr(problem, "sqlite_errorname", None) == "SQLITE_FULL"


def _pairs(metadata: Any) -> list[tuple[str, Any]]:
    return [(str(key), value) for key, value in metadata] if metadata is not None else []
