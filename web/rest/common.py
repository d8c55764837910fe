"""Parameters and schemas shared by the API's routes: names, paging, idempotency keys, reasons, and error responses."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar

from fastapi import APIRouter, Header, Path, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.convertors import Convertor, register_url_convertor  # codespell:ignore convertors,convertor

from web.security.problems import MEDIA_TYPE

PREFIX = "/api/v1"

T = TypeVar("T")

NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"
WITHOUT_NUL = r"^[^\x00]*$"
"""Pattern of any text that databases and programs can take; with a pattern, unpaired surrogates are refused as well."""

MAX_EXACT_INTEGER = 2**53
"""Numbers beyond this are not exact in every language that reads JSON."""

_ERROR_DESCRIPTIONS = {
    400: "The body is not valid JSON.",
    401: "No session or token, or the token is invalid, expired or revoked.",
    403: "The role or the token's scope lacks the permission, or the fleet's guard refuses the change.",
    404: "The resource does not exist.",
    409: "The resource has changed since it was read, or the Idempotency-Key was used for another change.",
    413: "The body is larger than 1 MiB.",
    422: "The request is invalid; `fields` lists the errors.",
    429: "Too many requests; retry after the seconds in the header Retry-After.",
    431: "Too many headers, or too long.",
    502: "A service of the run failed.",
    503: "A service of the run cannot be reached or is not configured.",
    504: "A service of the run did not answer in time.",
}


BODY_ERRORS = (400, 409, 413)
"""Additional error statuses of routes that accept a body."""


def error_responses(*more: int) -> dict[int | str, dict[str, Any]]:
    """Returns the documented error responses of a route. more: 400, 404, 409, 413, besides the common ones."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": _ERROR_DESCRIPTIONS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({401, 403, 422, 429, 431, 502, 503, 504, *more})
    }


def as_tool(
    name: str,
    *,
    changes_nothing: bool = False,
    is_destructive: bool = False,
    texts: Sequence[str] = (),
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Offers a route to agents as a tool of MCP, with the schemas of the API's document (`x-tool`).

    changes_nothing: for a route that is read with a body. is_destructive: the change cannot be taken back.
    texts, names: fields of the answer that hold texts of people, policies, environments and programs, and
    names of runs, which an agent gets redacted.
    """
    return {
        "x-tool": {
            "name": name,
            "changes_nothing": changes_nothing,
            "is_destructive": is_destructive,
            "texts": list(texts),
            "names": list(names),
        }
    }


class ApiRouter(APIRouter):
    """Router of the API, whose routes document the errors that they may return."""

    def __init__(self, path: str = "", *, tags: list[str | Enum]) -> None:
        """path: below `PREFIX`, of all routes."""
        super().__init__(prefix=f"{PREFIX}{path}", tags=tags)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Adds a route: 404 is documented for names in its path, 400, 409 and 413 for its body, and `responses`."""
        of_path = (404,) if "{" in path else ()
        of_body = BODY_ERRORS if {"POST", "PUT", "PATCH"} & {*options["methods"]} else ()
        responses = error_responses(*of_path, *of_body) | (options.pop("responses") or {})
        super().add_api_route(path, endpoint, responses=responses, **options)


class _NameWithSlashes(Convertor[str]):  # codespell:ignore convertor
    """Name that may contain slashes, without a trailing action: `/pools/eu/west/plans` names the pool `eu/west`."""

    regex = r"(?!.+/(?:plans|hold|what-if|inject-fault|drain)$).+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("resource", _NameWithSlashes())

WholeNumber = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
"""Accepts 3.0 as an integer, as JSON does not distinguish the two."""


class RequestBody(BaseModel):
    """Base of request bodies: refuses unknown fields and does not convert strings to numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)


Reason = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2000,
        pattern=r"^[^\x00]*[!-~][^\x00]*$",
        description="Reason for the change, recorded with your name in the journal and the audit log.",
        examples=["the trainer waits since demand doubled"],
    ),
]
PoolName = Annotated[str, Path(pattern=NAME, description="Name of the pool.", examples=["eu"])]
NodeName = Annotated[
    str, Path(pattern=NAME, description="Id of the node, from the list of nodes.", examples=["node-1.1"])
]
Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=100,
        pattern=r"^[!-~]{1,100}$",
        description="Unique key of your choice for each change, such as a UUID. A request repeated with the key is "
        "applied once and returns the first response.",
        examples=["0f4d5a0e-7f3c-4a47-9a4f-1c3d0c7f5a11"],
    ),
]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000, description="Page number from 1; empty beyond the last.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")]


class ResponseModel(BaseModel):
    """Base of response bodies: every field is present."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    @classmethod
    def values_of(cls, value: Any, **more: Any) -> dict[str, Any]:
        """Returns the fields of the model: `more`, and attributes of the value. The route validates them."""
        return {name: getattr(value, name) for name in cls.model_fields if name not in more} | more


class ItemList(ResponseModel, Generic[T]):
    """List of items, in the order that the type states."""

    items: list[T] = Field(description="Items in that order.")


class NumberedPage(ItemList[T]):
    """Page with a number."""

    total: int = Field(description="Items on all pages. Count.")
    page: int = Field(description="Number of the page, from 1.")
    pages: int = Field(description="Number of the last page.")

    @staticmethod
    def cut(items: Sequence[Any], page: int, limit: int) -> dict[str, Any]:
        """Returns the fields of a page of `limit` of the items."""
        shown = items[(page - 1) * limit : page * limit]
        return {"items": shown, "total": len(items), "page": page, "pages": max(1, -(-len(items) // limit))}


class MessageResponse(ResponseModel):
    """Result of a command."""

    message: str = Field(description="Performed change, in a sentence.")


class ReasonRequest(RequestBody):
    """Reason for a change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "agreed in the morning"}]})

    reason: Reason
