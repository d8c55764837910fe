"""Problem responses of the API: one format for every refusal and failure, with a remedy."""

from collections.abc import Mapping, Sequence

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from astraflow.contract.errors import InvalidInput

MEDIA_TYPE = "application/problem+json"
"""Source: RFC 9457."""

CODE_HEADER = "astraflow-error-code"
"""Header of every refusal and failure, as in gRPC: plain text and pages have no field for the code."""

TITLES = {
    400: "Unreadable request",
    401: "Not authenticated",
    403: "Not permitted",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Request too large",
    421: "Unknown host name",
    422: "Invalid request",
    429: "Too many requests",
    431: "Headers too large",
    500: "Internal error",
    502: "A service of the run failed",
    503: "A service of the run is unreachable",
    504: "A service of the run did not answer in time",
}

UNCERTAIN = "A change may have been made: repeat it with the same Idempotency-Key, and nothing is done twice."
"""Remedy of a failure that is no refusal."""

REMEDIES = {
    400: "Send JSON, as /api/v1/docs describes it.",
    401: "Send a token (Authorization: Bearer TOKEN, created under Settings), or log in.",
    403: "See the detail; if a role is missing, ask an admin to grant it or use a token with a higher scope.",
    404: "Check the name or id in the list; they may have changed.",
    405: "See /api/v1/docs; the header Allow names the methods.",
    409: "Read the current state, decide again, and send the request with a new Idempotency-Key.",
    413: "Send a smaller request.",
    421: "Use an address that the page printed at the start, or add this one with --name.",
    422: "Correct the named fields; an unchanged request fails again.",
    429: "Wait for the time in the detail, then retry.",
    431: "Send fewer or shorter headers.",
    500: f"See the log of the web process. {UNCERTAIN}",
    502: f"See the log of the service. {UNCERTAIN}",
    503: f"Retry in a few seconds. {UNCERTAIN}",
    504: f"Retry. {UNCERTAIN}",
}


class NotFound(InvalidInput):
    """The request names something that does not exist: status 404."""


class FieldProblem(BaseModel):
    """Invalid field of a request."""

    field: str = Field(description="Path of the field: `body.max_nodes`, `query.limit`, `header.idempotency-key`.")
    message: str = Field(description="Problem of the field.")


class Problem(BaseModel):
    """Problem of a request, with its remedy. Source: RFC 9457."""

    title: str = Field(description="Kind of problem; the same text for the same status.")
    status: int = Field(description="HTTP status.")
    code: str = Field(description="Stable error code for programs: `fleet.unknown_pool`. See /api/v1/docs.")
    detail: str = Field(description="Cause, in a sentence.")
    remedy: str = Field(description="Suggested action.")
    fields: list[FieldProblem] = Field(default=[], description="Invalid fields, for status 422.")


def problem_response(
    status: int,
    detail: str = "",
    *,
    code: str = "",
    fields: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Problem as an HTTP response."""
    title = TITLES.get(status, "Request failed")
    problem = Problem(
        title=title,
        status=status,
        code=code or f"http.{status}",
        detail=detail or f"{title}.",
        remedy=REMEDIES.get(status, "See /api/v1/docs."),
        fields=list(fields),
    )
    return JSONResponse(
        problem.model_dump(), status, media_type=MEDIA_TYPE, headers={CODE_HEADER: problem.code, **(headers or {})}
    )
