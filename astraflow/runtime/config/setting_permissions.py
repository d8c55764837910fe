"""Trust class of a setting: which role may override it from the web page or the REST API.

A field declares its class in its annotation, also in the options of a third-party plugin:

    path: Annotated[str, SettableBy.DATA_LOCATION]

The class of a field applies to everything below it. A number, a switch or a closed choice without a class is `AGENT`.
Everything else without a class is `RECIPE`: unreviewed text settings cannot be overridden. `astraflow run --set` is not
limited, since the local user owns the machine.
"""

from collections.abc import Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


class SettableBy(Enum):
    """Lowest role that may override a setting, or the condition under which all roles may."""

    AGENT = "agent"
    """Agents, operators and admins."""
    OPERATOR = "operator"
    """Operators and admins."""
    ADMIN = "admin"
    """Admins: budgets, bounds, prices and the guard's envelope."""
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
    return SettableBy.AGENT if _is_closed(inside) else SettableBy.RECIPE


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


def _is_closed(annotation: Any) -> bool:
    """Returns whether all values are numbers, switches or members of a closed choice."""
    origin = get_origin(annotation)
    if origin is Literal:
        return True
    if origin is Annotated:
        return _is_closed(get_args(annotation)[0])
    if origin in (Union, UnionType, tuple):
        return all(_is_closed(argument) for argument in get_args(annotation) if argument is not ...)
    return isinstance(annotation, type) and issubclass(annotation, bool | int | float | Enum | NoneType)
