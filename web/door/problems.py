"""What went wrong, for programs: one shape for every refusal and failure under `/api`, which says what to do."""

from collections.abc import Mapping, Sequence

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

MEDIA_TYPE = "application/problem+json"
"""Source: RFC 9457."""

TITLES = {
    400: "The request cannot be read",
    401: "Nobody is logged in",
    403: "This is refused",
    404: "There is no such thing",
    405: "This address cannot be used like that",
    409: "Somebody else was first",
    413: "The request is too large",
    421: "This is another host's name",
    422: "The request cannot be understood",
    429: "That was asked too often",
    431: "The headers are too large",
    500: "The page has a defect",
    502: "A service of the run failed",
    503: "A service of the run cannot be reached",
    504: "A service of the run did not answer in time",
}

TO_DO = {
    400: "Send JSON, as /api/v1/docs describes it.",
    401: "Show a token (Authorization: Bearer TOKEN, made under Settings), or log in.",
    403: "Read what refuses it; for a role, ask who can grant it or use a token with more scope.",
    404: "Look at the list that it should be in: names and ids change.",
    405: "See /api/v1/docs for what this address takes; the header Allow names the methods.",
    409: "Read again what has changed, decide again, and send that with a new Idempotency-Key.",
    413: "Send less.",
    421: "Use an address that the page printed when it started, or name this one with --name.",
    422: "Change the fields that are named; sending the same again will fail again.",
    429: "Wait as long as the detail says, then ask again.",
    431: "Send fewer or shorter headers.",
    500: "Look into the log of the web process. The run is not affected.",
    502: "Look into the log of the service. The run is not affected.",
    503: "Try again in a few seconds with the same Idempotency-Key: nothing is done twice.",
    504: "Try again with the same Idempotency-Key: nothing is done twice.",
}


class FieldProblem(BaseModel):
    """One thing that was sent and does not do."""

    field: str = Field(description="Where it is: `body.max_nodes`, `query.limit`, `header.idempotency-key`.")
    message: str = Field(description="What is wrong with it.")


class Problem(BaseModel):
    """Why something was not done, and what to do about it. Source: RFC 9457."""

    title: str = Field(description="The kind of problem: the same words for the same status.")
    status: int = Field(description="The HTTP status again.")
    code: str = Field(description="Stable name of this error, for programs: `fleet.unknown_pool`. See /api/v1/docs.")
    detail: str = Field(description="What was found, in a sentence.")
    to_do: str = Field(description="What would work.")
    fields: list[FieldProblem] = Field(default=[], description="What was sent wrongly, for status 422.")


def problem_answer(
    status: int,
    detail: str = "",
    *,
    code: str = "",
    fields: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The problem as an answer."""
    title = TITLES.get(status, "That did not work")
    problem = Problem(
        title=title,
        status=status,
        code=code or f"http.{status}",
        detail=detail or f"{title}.",
        to_do=TO_DO.get(status, "See /api/v1/docs."),
        fields=list(fields),
    )
    return JSONResponse(problem.model_dump(), status, media_type=MEDIA_TYPE, headers=dict(headers) if headers else None)
