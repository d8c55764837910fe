"""Names and numbers that identify things, each with its validation rule.

They are subclasses of `str` and `int`: they hash, compare and serialise as such, and an invalid value is rejected at
construction instead of far away where it is used. Pydantic calls their methods for it and is not imported.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

from astraflow.contract.errors import InvalidInput

MAX_VERSION = 2**53
"""Largest version. Every language and database that reads a report represents it exactly."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_LINES = re.compile(rf"(?:{_NAME.pattern}\n)*")


class Name(str):
    """A short identifier: letters, digits and `._:/-`, at most 128 characters, beginning with a letter or digit."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        if not _NAME.fullmatch(value):
            raise InvalidInput(
                f"cannot use {value[:140]!r} as {cls.__name__}: not a valid name; "
                "use 1 to 128 letters, digits and . _ : / -, beginning with a letter or digit",
                code="id.invalid_name",
            )
        return super().__new__(cls, value)

    @classmethod
    def checked(cls, values: Sequence[str]) -> list[Self]:
        """Returns ids of many values at a tenth of the cost of one by one. Raises: InvalidInput."""
        lines = "".join([f"{value}\n" for value in values])
        if _LINES.fullmatch(lines) and lines.count("\n") == len(values):
            return list(map(cls.unchecked, values))
        return list(map(cls, values))

    @classmethod
    def unchecked(cls, value: str) -> Self:
        """Skips validation, which takes as long as everything else: for ids composed of names that were checked."""
        return str.__new__(cls, value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Returns pydantic's schema: a string."""
        return handler(str)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        """Returns the JSON schema: a string whose meaning is that of the type."""
        return handler(schema) | {"description": cls.__doc__}


class PolicyId(Name):
    """A model being trained."""

    __slots__ = ()


def adapter_base_of(policy: str) -> PolicyId:
    """Returns the policy under which the frozen base of a policy's adapters is published.

    >>> adapter_base_of("solver")
    'solver.base'
    """
    return PolicyId(f"{policy}.base")


class FlowId(Name):
    """A stream of tasks with one workflow."""

    __slots__ = ()


class NodeId(Name):
    """One RaaS process in one incarnation: a node that restarts gets a new id."""

    __slots__ = ()


def node_name(node: str) -> str:
    """Returns the name that all incarnations of a node share.

    >>> node_name("node-a.17")
    'node-a'
    """
    return node.rpartition(".")[0]


class PoolId(Name):
    """A set of nodes that is scaled as one unit."""

    __slots__ = ()


class PromptId(Name):
    """One item of a dataset."""

    __slots__ = ()


class GroupId(Name):
    """One issue of one prompt: `flow:ordinal`."""

    __slots__ = ()


@lru_cache(maxsize=4096)
def ordinal_of(group_id: GroupId) -> int | None:
    """Returns the ordinal of a group id `flow:ordinal`, None for any other text."""
    _, colon, ordinal = group_id.rpartition(":")
    return int(ordinal) if colon and ordinal.isdecimal() else None


class TaskId(Name):
    """One member of a group, and the id of the episode it produces: `flow:ordinal/member`."""

    __slots__ = ()


class BatchId(Name):
    """One batch of one policy: `policy:step`."""

    __slots__ = ()


class Version(int):
    """Number of publishes that produced the weights of a policy; the first is 0."""

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        if value < 0:
            raise InvalidInput(
                f"cannot use {value} as version: it is negative; versions count publishes from 0",
                code="id.invalid_version",
            )
        if value > MAX_VERSION:
            raise InvalidInput(
                f"cannot use {value} as version: it is above {MAX_VERSION}; versions count publishes from 0",
                code="id.invalid_version",
            )
        return super().__new__(cls, value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Returns pydantic's schema: an integer."""
        return handler(int)
