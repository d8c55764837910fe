"""Trust class of a setting: which role may override it from the web page or the REST API.

A field declares its class where it stands, also in the options of a third party's plugin:

    path: Annotated[str, SetBy.PLACE]

The class of a field holds for everything below it. A number, a switch or a closed choice without a class is `AGENT`.
Everything else without a class is `RECIPE`: text that nobody looked at cannot be overridden. `astraflow run --set` is
not limited, since the local user owns the machine.
"""

from collections.abc import Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


class SetBy(Enum):
    """Least role that may override a setting, or the condition under which any of them may."""

    AGENT = "agent"
    """Agents, operators and admins."""
    OPERATOR = "operator"
    """Operators and admins."""
    ADMIN = "admin"
    """Admins: budgets, bounds, prices and the guard's envelope."""
    PLACE = "place"
    """Any of these roles, to a file, folder or address below a data place that the page was started with."""
    RECIPE = "recipe"
    """No role: paths, addresses, commands, names of environment variables, providers."""

    def allows(self, role: str) -> bool:
        """Whether the role is high enough, as far as roles decide.

        >>> SetBy.ADMIN.allows("operator"), SetBy.OPERATOR.allows("admin"), SetBy.PLACE.allows("agent")
        (False, True, True)
        """
        ranks = [SetBy.AGENT.value, SetBy.OPERATOR.value, SetBy.ADMIN.value]
        if role not in ranks or self is SetBy.RECIPE:
            return False
        return self is SetBy.PLACE or ranks.index(role) >= ranks.index(self.value)


def set_by(model: Any, path: Sequence[str]) -> SetBy:
    """Returns the class of the setting that a path leads to from a type; `RECIPE` where it leads to none."""
    declared, inside = _walked(model, path)
    if declared is not None:
        return declared
    return SetBy.AGENT if _is_closed(inside) else SetBy.RECIPE


def declared_class(model: Any, path: Sequence[str]) -> SetBy | None:
    """Returns the class that a field on the path declares; None where none does."""
    return _walked(model, path)[0]


def _walked(model: Any, path: Sequence[str]) -> tuple[SetBy | None, Any]:
    """The first class on the path, and the type at its end; None for the type where the path leads nowhere."""
    inside: Any = model
    for part in path:
        if isinstance(inside, type) and issubclass(inside, BaseModel):
            info = inside.model_fields.get(part)
            if info is None:
                return None, None
            declared = next((mark for mark in info.metadata if isinstance(mark, SetBy)), None)
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
    """The type without an `| None`."""
    inner = [argument for argument in get_args(annotation) if argument is not NoneType]
    return inner[0] if NoneType in get_args(annotation) and len(inner) == 1 else annotation


def _is_closed(annotation: Any) -> bool:
    """Whether all values are numbers, switches or members of a closed choice."""
    origin = get_origin(annotation)
    if origin is Literal:
        return True
    if origin is Annotated:
        return _is_closed(get_args(annotation)[0])
    if origin in (Union, UnionType, tuple):
        return all(_is_closed(one) for one in get_args(annotation) if one is not ...)
    return isinstance(annotation, type) and issubclass(annotation, bool | int | float | Enum | NoneType)
