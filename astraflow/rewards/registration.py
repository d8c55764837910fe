"""Registry of rewards: refuses a class that cannot score, and names the kind of a reward in errors."""

from collections.abc import Callable
from inspect import unwrap
from pathlib import Path
from typing import Any, Protocol, TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config
from astraflow.runtime.plugins import Registry

T = TypeVar("T")
C = TypeVar("C", bound=type)

SCORING_METHODS = ("score", "score_with_length", "asking")
"""Methods of which a reward has at least one."""

_kinds: dict[type, str] = {}
"""Kind of each registered class."""


class RewardRegistry(Registry[T]):
    """Registry whose plugins have a method that scores, or that returns the reward of an episode."""

    def register(self, kind: str, *, options: type[Config]) -> Callable[[C], C]:
        """As `Registry.register`. The decorator raises: InvalidInput for a class without a method that scores."""
        decorate = super().register(kind, options=options)

        def checked(plugin: C) -> C:
            if not any(_defines(plugin, method) for method in SCORING_METHODS):
                raise InvalidInput(
                    f"cannot register the reward {kind!r}: its class {plugin.__name__!r} has no method 'score'; add "
                    "score(self, prompt, completion, finish), which returns a number or a Score",
                    code="reward.no_score",
                )
            _kinds[plugin] = kind
            return decorate(plugin)

        return checked


def source_of(reward: object, method: Callable[..., Any]) -> str:
    """Returns the kind of a reward and the place of its method, such as `reward 'mine' (score in mine.py, line 7)`."""
    name = _kinds.get(type(reward), type(reward).__name__)
    function = unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    location = f" ({function.__name__} in {Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
    return f"reward {name!r}{location}"


def _defines(plugin: type, method: str) -> bool:
    """Returns whether a class or one of its bases defines the method. A Protocol only declares it."""
    if not isinstance(plugin, type):
        return True  # a factory, which is checked by building it
    bases = (base for base in plugin.__mro__ if Protocol not in base.__bases__)
    return any(callable(vars(base).get(method)) for base in bases)
