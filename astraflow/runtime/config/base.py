"""Base of all configuration classes, with error messages that suggest the nearest known key."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from astraflow.contract.errors import InvalidInput

ValueOrigin = Callable[[Sequence[str]], str]
"""Returns the file that wrote the value at a path of keys."""


class Config(BaseModel):
    """Frozen model that rejects unknown keys. Every field has a working default, unless only the user can know its
    value."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str, origin: ValueOrigin | None = None) -> Self:
        """Validates `values`. where: their path for the message, as in `policies.solver.optimizer`.

        origin: for values merged from several files, names the file for each line. Raises: InvalidInput with one line
        per problem.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as problem:
            raise InvalidInput(_explain(cls, problem, where, origin), code="config.invalid") from None


def suggest_name(name: str, known: list[str]) -> str:
    """Returns a hint for an unknown name: the closest known name, or all known names.

    >>> suggest_name("learning_rat", ["learning_rate", "beta"])
    "did you mean 'learning_rate'?"
    >>> suggest_name("zzz", ["b", "a"])
    'known: a, b'
    """
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"


_MESSAGES = {"dict_type": "must be a table: { KEY = VALUE }"}
"""In the words of TOML, by type of error."""


def _explain(root: type[BaseModel], problem: ValidationError, where: str, origin: ValueOrigin | None) -> str:
    lines = []
    for error in problem.errors(include_url=False):
        path = [str(part) for part in error["loc"]]
        location = ".".join([where, *path]) if where else ".".join(path)
        location = f"{origin(path)}: {location}" if origin else location
        if error["type"] == "extra_forbidden":
            lines.append(f"{location}: unknown key; {suggest_name(path[-1], _keys_at(root, path[:-1]))}")
        elif error["type"] == "missing":
            lines.append(f"{location}: missing; it has no default")
        else:
            message = _MESSAGES.get(error["type"], error["msg"].removeprefix("Value error, "))
            lines.append(f"{location}: {message} (found {_shortened(error['input'])})")
    return "\n".join(lines)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _keys_at(root: type[BaseModel], path: list[str]) -> list[str]:
    """Returns the field names of the model at `path`, through nested models, maps and lists of models."""
    annotation: Any = root
    for part in path:
        annotation = _member(annotation, part)
    return list(annotation.model_fields) if _is_model(annotation) else []


def _member(annotation: Any, part: str) -> Any:
    """Returns the type at `part` inside a type; None when the path leads to no model."""
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return _without_none(field.annotation) if field else None
    arguments = [argument for argument in getattr(annotation, "__args__", ()) if argument is not ...]
    return _without_none(arguments[-1]) if arguments else None  # the value type of a map, the item type of a list


def _without_none(annotation: Any) -> Any:
    """Returns the annotation without `| None`."""
    arguments = [argument for argument in getattr(annotation, "__args__", ()) if argument is not type(None)]
    is_optional = type(None) in getattr(annotation, "__args__", ())
    return arguments[0] if is_optional and len(arguments) == 1 else annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


_DOMAIN = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/"
_PATH = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
IMAGE_NAME = re.compile(
    rf"(?:{_DOMAIN})?{_PATH}(?:/{_PATH})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII
)
_MAX_CHARS = 512


def is_image_name(name: str) -> bool:
    """Returns whether a text is the name of an image, such as `registry:5000/team/image:1`, and not an option.

    >>> [is_image_name(name) for name in ("debian:bookworm-slim", "-v=/:/host", "--privileged")]
    [True, False, False]
    """
    return len(name) <= _MAX_CHARS and IMAGE_NAME.fullmatch(name) is not None
