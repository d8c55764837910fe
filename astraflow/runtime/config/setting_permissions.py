"""Trust class of a setting: which role may override it from the web page or the REST API.

A field declares its class in its annotation, also in the options of a third-party plugin:

    path: Annotated[str, SettableBy.DATA_LOCATION]

The class of a field applies to everything below it. A number without a class is `AGENT`, unless its name speaks of
reach or isolation (`speaks_of_reach`). Everything else without a class is `RECIPE`, switches and closed choices too:
what was not reviewed cannot be overridden. `astraflow run --set` is not limited, since the local user owns the machine.
"""

import re
from collections.abc import Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

_REACH = frozenset((
    "access", "account", "address", "admin", "allow", "authority", "bind", "capability", "cgroup", "command",
    "container", "credential", "device", "docker", "domain", "egress", "endpoint", "env", "environment",
    "expose", "gid", "host", "image", "ingress", "insecure", "ip", "isolation", "listen", "mode",
    "mount", "namespace", "network", "path", "pid", "pids", "port", "ports", "private", "privilege",
    "privileged", "program", "proxy", "public", "python", "reach", "remote", "role", "root", "runner",
    "runtime", "sandbox", "secret", "security", "shared", "shell", "socket", "ssh", "ssl", "sudo", "syscall",
    "tls", "trust", "trusted", "uid", "umask", "unsafe", "untrusted", "uri", "url", "user", "verify", "volume",
    "weak",
))  # fmt: skip
"""Words of names of settings that say what a process reaches, as whom it runs, or what contains it."""


class SettableBy(Enum):
    """Lowest role that may override a setting, or the condition under which all roles may."""

    AGENT = "agent"
    """Agents, operators and admins."""
    OPERATOR = "operator"
    """Operators and admins."""
    ADMIN = "admin"
    """Admins: budgets, bounds, prices and the guard's limits."""
    DATA_LOCATION = "data_location"
    """Any of these roles, to a file, folder or address below a data location that the page was started with."""
    RECIPE = "recipe"
    """No role: paths, addresses, commands, names of environment variables, providers."""

    def allows(self, role: str) -> bool:
        """Returns whether the role is sufficient, as far as roles decide.

        >>> SettableBy.ADMIN.allows("operator"), SettableBy.OPERATOR.allows("admin")
        (False, True)
        >>> SettableBy.DATA_LOCATION.allows("agent")
        True
        """
        ranks = [SettableBy.AGENT.value, SettableBy.OPERATOR.value, SettableBy.ADMIN.value]
        if role not in ranks or self is SettableBy.RECIPE:
            return False
        return self is SettableBy.DATA_LOCATION or ranks.index(role) >= ranks.index(self.value)


def settable_by(model: Any, path: Sequence[str]) -> SettableBy:
    """Returns the class of the setting at a path below a type; `RECIPE` for an invalid path."""
    declared, inside = _walked(model, path)
    if declared is not None:
        return declared
    return SettableBy.AGENT if _is_number(inside) and not any(map(speaks_of_reach, path)) else SettableBy.RECIPE


def speaks_of_reach(name: str) -> bool:
    """Returns whether the name of a setting speaks of reach or isolation.

    >>> [name for name in ("proxy_port", "user_id", "hasNetwork", "max_tokens", "reports") if speaks_of_reach(name)]
    ['proxy_port', 'user_id', 'hasNetwork']
    """
    return not _REACH.isdisjoint(word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))


def declared_class(model: Any, path: Sequence[str]) -> SettableBy | None:
    """Returns the class that a field on the path declares; None without one."""
    return _walked(model, path)[0]


def _walked(model: Any, path: Sequence[str]) -> tuple[SettableBy | None, Any]:
    """Returns the first declared class on the path, and the type at its end; None for the type of an invalid path."""
    inside: Any = model
    for part in path:
        if isinstance(inside, type) and issubclass(inside, BaseModel):
            info = inside.model_fields.get(part)
            if info is None:
                return None, None
            declared = next((mark for mark in info.metadata if isinstance(mark, SettableBy)), None)
            if declared is not None:
                return declared, None
            inside = _required(info.annotation)
        elif get_origin(inside) in (dict, list, tuple):
            arguments = [argument for argument in get_args(inside) if argument is not ...]
            inside = _required(arguments[-1])
        else:
            return None, None
    return None, inside


def _required(annotation: Any) -> Any:
    """Returns the type without `| None`."""
    inner = [argument for argument in get_args(annotation) if argument is not NoneType]
    return inner[0] if NoneType in get_args(annotation) and len(inner) == 1 else annotation


def _is_number(annotation: Any) -> bool:
    """Returns whether all values are numbers; a switch is none."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_number(get_args(annotation)[0])
    if origin in (Union, UnionType, tuple):
        return all(_is_number(argument) for argument in get_args(annotation) if argument is not ...)
    return isinstance(annotation, type) and issubclass(annotation, int | float | NoneType) and annotation is not bool
