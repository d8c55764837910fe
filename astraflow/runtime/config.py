"""The base of every configuration class, and error messages that name the nearest known key."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from astraflow.contract.errors import InvalidInput

Origin = Callable[[Sequence[str]], str]
"""Names the file that the value at a path of keys was written in."""


class Config(BaseModel):
    """Frozen, unknown keys refused; every field has a default that works or is a thing only the user knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str, origin: Origin | None = None) -> Self:
        """Validate `values`; `where` names their place for the message, as in `policies.solver.optimizer`.

        origin: for values gathered from several files, begins each line with the file it is about.
        Raises: InvalidInput with one line for each problem.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as problem:
            raise InvalidInput(_explain(cls, problem, where, origin)) from None


def nearest(name: str, known: list[str]) -> str:
    """A hint for a wrong name: the closest known one, or all of them.

    >>> nearest("learning_rat", ["learning_rate", "beta"])
    "did you mean 'learning_rate'?"
    >>> nearest("zzz", ["b", "a"])
    'known: a, b'
    """
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"


def _explain(root: type[BaseModel], problem: ValidationError, where: str, origin: Origin | None) -> str:
    lines = []
    for error in problem.errors(include_url=False):
        path = [str(part) for part in error["loc"]]
        place = ".".join([where, *path]) if where else ".".join(path)
        place = f"{origin(path)}: {place}" if origin else place
        if error["type"] == "extra_forbidden":
            lines.append(f"{place}: unknown key; {nearest(path[-1], _keys_at(root, path[:-1]))}")
        elif error["type"] == "missing":
            lines.append(f"{place}: missing; it has no default")
        else:
            message = error["msg"].removeprefix("Value error, ")
            lines.append(f"{place}: {message} (found {_shortened(error['input'])})")
    return "\n".join(lines)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _keys_at(root: type[BaseModel], path: list[str]) -> list[str]:
    """Field names of the model that `path` leads to, through nested models, and maps and lists of models."""
    inside: Any = root
    for part in path:
        inside = _member(inside, part)
    return list(inside.model_fields) if _is_model(inside) else []


def _member(annotation: Any, part: str) -> Any:
    """What stands at `part` inside a value of that type; None when that is not a model or leads to none."""
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return _plain(field.annotation) if field else None
    arguments = [argument for argument in getattr(annotation, "__args__", ()) if argument is not ...]
    return _plain(arguments[-1]) if arguments else None  # of a map the value, of a list the item


def _plain(annotation: Any) -> Any:
    """The annotation without an `| None`."""
    arguments = [argument for argument in getattr(annotation, "__args__", ()) if argument is not type(None)]
    is_optional = type(None) in getattr(annotation, "__args__", ())
    return arguments[0] if is_optional and len(arguments) == 1 else annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
