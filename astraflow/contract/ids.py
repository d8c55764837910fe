"""Names and numbers that identify things, each with the rule it must satisfy.

They are subclasses of `str` and `int`: they hash, compare and serialise as what they are, and a wrong one is refused
where it is made instead of far away where it is used.
"""

import re
from typing import Self

from astraflow.contract.errors import InvalidInput

LARGEST_VERSION = 2**53
"""Exact in every language and database that reads a report."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


class Name(str):
    """A short identifier: letters, digits and `._:/-`, at most 128 characters, beginning with a letter or digit."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        if not _NAME.fullmatch(value):
            raise InvalidInput(
                f"{cls.__name__} {value[:140]!r} is not a name: use 1 to 128 letters, digits and . _ : / -, "
                "beginning with a letter or digit"
            )
        return super().__new__(cls, value)

    @classmethod
    def known(cls, value: str) -> Self:
        """Without the check, which takes as long as all else: for what is made of names that were checked."""
        return str.__new__(cls, value)


class PolicyId(Name):
    """A model being trained."""

    __slots__ = ()


class FlowId(Name):
    """A stream of tasks with one workflow."""

    __slots__ = ()


class NodeId(Name):
    """One RaaS process in one incarnation: a node that restarts gets a new id."""

    __slots__ = ()


def name_of(node: str) -> str:
    """The name that a node's incarnations share.

    >>> name_of("node-a.17")
    'node-a'
    """
    return node.rpartition(".")[0]


class PoolId(Name):
    """A set of nodes that are sized together."""

    __slots__ = ()


class PromptId(Name):
    """One item of a dataset."""

    __slots__ = ()


class GroupId(Name):
    """One issue of one prompt: `flow:ordinal`."""

    __slots__ = ()


class TaskId(Name):
    """One member of a group, and the id of the episode it produces: `flow:ordinal/member`."""

    __slots__ = ()


class BatchId(Name):
    """One batch of one policy: `policy:step`."""

    __slots__ = ()


class Version(int):
    """The weights of a policy after that many publishes; the first is 0."""

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        if value < 0:
            raise InvalidInput(f"version {value} is negative: versions count publishes, from 0")
        if value > LARGEST_VERSION:
            raise InvalidInput(f"version {value} is too large: versions count publishes, from 0")
        return super().__new__(cls, value)
