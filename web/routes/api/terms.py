"""Words that many addresses of the API share: names, pages, keys, reasons, and what refusals look like."""

from typing import Annotated, Any

from fastapi import Header, Path, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.convertors import Convertor, register_url_convertor  # codespell:ignore convertors,convertor

from web.door.problems import MEDIA_TYPE

PREFIX = "/api/v1"

NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"
LARGEST = 2**53
"""Numbers beyond this are not exact in every language that reads JSON."""

_REFUSALS = {
    400: "The body is no JSON.",
    401: "Nobody is logged in, or the token is not good (any more).",
    403: "The role or the scope does not have this, or the guard of the fleet refuses it.",
    404: "There is no such thing.",
    409: "It has changed since it was read, or the Idempotency-Key was used for another change.",
    413: "More than 1 MiB.",
    422: "What was sent cannot be understood; `fields` says where.",
    429: "It was asked too often; `detail` and, in seconds, the header Retry-After say when to ask again.",
    431: "Too many or too long headers.",
    502: "A service of the run failed.",
    503: "A service of the run cannot be reached, or there is none.",
    504: "A service of the run did not answer in time.",
}


def refusals(*more: int) -> dict[int | str, dict[str, Any]]:
    """Documents what else an address answers. more: 400, 404, 409, 413, besides those that each has."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": _REFUSALS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({401, 403, 422, 429, 431, 502, 503, 504, *more})
    }


class _Resource(Convertor[str]):  # codespell:ignore convertor
    """A name with slashes in it, which is not what is done to it: `/pools/eu/west/plans` is about `eu/west`."""

    regex = r"(?!.+/(?:plans|hold|what-if|lose|drain)$).+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("resource", _Resource())

SENT = (400, 409, 413)
"""What an address that takes a body refuses besides."""

Whole = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
"""In JSON, 3.0 is a whole number."""


class Body(BaseModel):
    """What is sent: nothing that is not known, and numbers as numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)


Reason = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2000,
        pattern=r"[!-~]",
        description="Why, for the journal and the audit, which keep it with your name.",
        examples=["the trainer waits since the demand doubled"],
    ),
]
PoolName = Annotated[str, Path(pattern=NAME, description="Name of the pool.", examples=["eu"])]
NodeName = Annotated[
    str, Path(pattern=NAME, description="Id of the node, as the list of nodes has it.", examples=["node-1.1"])
]
Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=100,
        pattern=r"^[!-~]{1,100}$",
        description="A new one for each change, of your own choosing (a UUID does). Sent again with the same key, a "
        "change is made once and answered as the first time.",
        examples=["0f4d5a0e-7f3c-4a47-9a4f-1c3d0c7f5a11"],
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]


class Filled(BaseModel):
    """What is answered: every field is there."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class Said(Filled):
    """What came of it."""

    message: str
