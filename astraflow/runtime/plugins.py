"""Plug-ins by kind: built-ins from a table, others by entry point, options validated."""

from collections.abc import Callable, Collection, Mapping
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
    heavy: built-in kinds whose modules take seconds to import, or may lack what they import. advice: what to do about
    a package that is missing.
    """

    def __init__(
        self,
        noun: str,
        built_in: Mapping[str, str],
        *,
        heavy: Collection[str] = (),
        advice: str = "pip install 'astraflow[train]' brings what models and training need",
    ) -> None:
        self.noun = noun
        self._advice = advice
        self._built_in = dict(built_in)
        self._heavy = frozenset(heavy)
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

    def options(self, kind: str) -> type[Config]:
        """What a kind can be told. Raises: InvalidInput for an unknown one, or one that cannot be imported here."""
        return self._find({"kind": kind})[1]

    def is_heavy(self, kind: str) -> bool:
        """Whether asking for this kind imports something heavy, or something whose weight is not known."""
        if kind in self._registered or kind in self._built_in:
            return kind in self._heavy and kind not in self._registered
        return any(entry.name == kind for entry in self._entries())

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
            self._load_or_explain(kind)
        if kind not in self._registered:
            raise InvalidInput(f"no {self.noun} is called {kind!r}; {nearest(kind, self.kinds())}")
        return self._registered[kind]

    def _load_or_explain(self, kind: str) -> None:
        try:
            self._load(kind)
        except ModuleNotFoundError as problem:
            absent = problem.name or ""
            if absent.startswith("astraflow"):
                raise  # a defect of ours
            raise InvalidInput(
                f"the {self.noun} {kind!r} needs the package {absent!r}, which is not installed here: " + self._advice
            ) from problem

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
