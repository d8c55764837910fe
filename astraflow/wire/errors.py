"""Mapping between errors and gRPC statuses, so that a client raises the error that the server raised."""

import errno
from typing import Any

import grpc

from astraflow.contract import errors

ERROR_KEY = "astraflow-error"
"""Trailing metadata that carries the error's type name: several types share a status code."""

CODE_KEY = "astraflow-error-code"
"""Trailing metadata that carries the error's `code`."""

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
"""For statuses that gRPC itself produced: an oversized message is RESOURCE_EXHAUSTED, a stopping server cancels.

A stream that breaks while its requests are written occasionally ends as INTERNAL instead of UNAVAILABLE (grpc/grpc
issue 36066); the services' own INTERNAL carries its type name.
"""


def to_status(problem: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Returns the status, the message and the trailing metadata for an exception that a handler raised.

    A full disk is recognised in any exception. An exception other than `AstraFlowError` becomes INTERNAL without
    details, which are in the server's log.
    """
    if is_disk_full(problem):
        problem = errors.StorageFull(
            "cannot write: the disk is full; free some space, the service then continues by itself and nothing "
            "acknowledged was lost",
            code="storage.disk_full",
        )
    if not isinstance(problem, errors.AstraFlowError):
        problem = errors.InternalError(
            "cannot complete the request: defect in the service; read its log for the details", code="service.defect"
        )
    kind = next((kind for kind in type(problem).__mro__ if kind in _TABLE), errors.InternalError)
    return _TABLE[kind], str(problem), ((ERROR_KEY, kind.__name__), (CODE_KEY, problem.code))


def from_status(problem: grpc.aio.AioRpcError, *, peer: str) -> errors.AstraFlowError:
    """Returns the error that a client raises for a failed call to `peer`."""
    trailer = dict(_pairs(problem.trailing_metadata()))
    name, code = trailer.get(ERROR_KEY), trailer.get(CODE_KEY)
    message = problem.details() or problem.code().name
    if isinstance(name, str) and name in _BY_NAME:
        is_code = isinstance(code, str) and errors.CODE.fullmatch(code) is not None
        return _BY_NAME[name](message, code=str(code) if is_code else "")
    kind = _BY_CODE.get(problem.code(), errors.InternalError)
    if kind is errors.Unavailable:
        return errors.Unavailable(
            f"cannot reach {peer}: {message}; check that the service runs and that the address is right",
            code="channel.unreachable",
        )
    return kind(message)


def is_from_service(problem: grpc.aio.AioRpcError) -> bool:
    """Returns whether an AstraFlow service returned the error, rather than gRPC on the way to one."""
    return ERROR_KEY in dict(_pairs(problem.trailing_metadata()))


def is_disk_full(problem: BaseException) -> bool:
    """Returns whether an error means that a disk is full: from the operating system or from SQLite."""
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return getattr(problem, "sqlite_errorname", None) == "SQLITE_FULL"


def _pairs(metadata: Any) -> list[tuple[str, Any]]:
    return [(str(key), value) for key, value in metadata] if metadata is not None else []
