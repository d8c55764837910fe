"""Plug-ins by kind: built-ins from a table, others by entry point, options validated."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import Config, nearest

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """All plug-ins of one seam (`selector`, `filter`, `reward`, ...).

    built_in: kind -> module that registers it. A module is imported when its kind is first asked for, so heavy engines
    cost nothing until used. Third parties register through the entry point group `astraflow.<noun>s`, one entry per
    kind, pointing at a module that calls `register`. A wrong kind is answered with the nearest known one.
    """

    def __init__(self, noun: str, built_in: Mapping[str, str]) -> None:
        self.noun = noun
        self._built_in = dict(built_in)
        self._registered: dict[str, tuple[Callable[..., T], type[Config]]] = {}

    def register(self, kind: str, *, options: type[Config]) -> Callable[[C], C]:
        """Class decorator: `build` calls the class with its parsed options and whatever context the seam hands in."""

        def decorate(plugin: C) -> C:
            self._registered[kind] = (plugin, options)
            return plugin

        return decorate

    def kinds(self) -> list[str]:
        """Every known kind, sorted."""
        return sorted({*self._built_in, *self._registered, *(entry.name for entry in self._entries())})

    def build(self, spec: Mapping[str, Any], *context: Any, **named: Any) -> T:
        """Make the plug-in that `spec` asks for: `{"kind": ..., <options>}`.

        Raises: InvalidInput for an unknown kind or bad options.
        """
        factory, options_type = self._find(spec)
        options = options_type.parse(_options_of(spec), where=f"{self.noun} {spec['kind']}")
        return factory(options, *context, **named)

    def check(self, spec: Mapping[str, Any]) -> Config:
        """Validate `spec` without building; returns the options. Raises: InvalidInput."""
        _, options_type = self._find(spec)
        return options_type.parse(_options_of(spec), where=f"{self.noun} {spec['kind']}")

    def _find(self, spec: Mapping[str, Any]) -> tuple[Callable[..., T], type[Config]]:
        kind = spec.get("kind")
        if not isinstance(kind, str):
            raise InvalidInput(f"a {self.noun} needs a 'kind'; known: {', '.join(self.kinds())}")
        if kind not in self._registered:
            self._load(kind)
        if kind not in self._registered:
            raise InvalidInput(f"no {self.noun} is called {kind!r}; {nearest(kind, self.kinds())}")
        return self._registered[kind]

    def _load(self, kind: str) -> None:
        if kind in self._built_in:
            import_module(self._built_in[kind])
            return
        for entry in self._entries():
            if entry.name == kind:
                entry.load()

    def _entries(self) -> Any:
        return entry_points(group=f"astraflow.{self.noun}s")


def _options_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "kind"}
