"""Registry of plugins by kind: built-in plugins from a table, third-party plugins by entry point or from the modules
that the environment names, with validated options; and the lifecycle of plugins that own resources."""

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from inspect import getdoc, signature
from pathlib import Path
from stat import S_ISREG, S_IWOTH
from sysconfig import get_path
from traceback import extract_tb
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime.config.base import Config, ValueOrigin, suggest_name
from astraflow.runtime.imports import needs_extra

T = TypeVar("T")
C = TypeVar("C", bound=type)

PLUGINS_VARIABLE = "ASTRAFLOW_PLUGINS"
"""Environment variable with the modules and Python files that register plugins, separated as in PATH. Only who starts
a process sets it: neither recipes nor other services name code to import."""


_OTHER_CODE = ("<", str(Path(__file__).parents[1]), *map(get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
"""Beginnings of the file names of AstraFlow, of the standard library and of installed packages."""


def plugin_cause(problem: BaseException) -> str:
    """Returns type and message of an exception that a plugin raised, and the line of the user's code that led to it,
    such as `KeyError: 'world' (maze.py, line 21)`."""
    lines = [frame for frame in extract_tb(problem.__traceback__) if not frame.filename.startswith(_OTHER_CODE)]
    location = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
    return f"{type(problem).__name__}: {problem}{location}"


def import_plugins(target: str) -> None:
    """Imports a module, or a Python file by its path, which registers plugins. Raises: InvalidInput."""
    try:
        if target.endswith(".py"):
            _import_file(Path(target))
        else:
            import_module(target)
    except AstraFlowError:
        raise
    except (Exception, SystemExit) as problem:
        remedy = "correct the module; astraflow --verbose shows the traceback"
        if isinstance(problem, ModuleNotFoundError) and problem.name != target:
            remedy = f"install the package of {problem.name!r}, or correct the import"
        elif isinstance(problem, ImportError | OSError):
            remedy = "give a Python file, or a module that Python finds here"
        raise InvalidInput(
            f"cannot import the plugins of {target!r}: {plugin_cause(problem)}; {remedy}",
            code="plugin.not_importable",
        ) from problem


def load_plugin_file(path: Path) -> None:
    """Imports a Python file that another process named, if only the owner of this process and root could write it.

    Raises: InvalidInput.
    """
    if cause := _unsafe(path):
        raise InvalidInput(
            f"cannot load the plugin file {str(path)!r}: {cause}; name a file ending in .py of your own on the host of "
            "the service",
            code="plugin.file_refused",
        )
    import_plugins(str(path))


def _unsafe(path: Path) -> str:
    """Returns why a file must not be imported; empty for a Python file that only this user and root could write."""
    try:
        status = path.stat()
    except OSError as problem:
        return str(problem)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & S_IWOTH:
        return "other users of the host can write it"
    is_source = path.is_absolute() and path.suffix == ".py" and S_ISREG(status.st_mode)
    return "" if is_source else "it is no Python file with an absolute path"


def _import_file(path: Path) -> None:
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        if Path(getattr(loaded, "__file__", None) or "").resolve() != path.resolve():
            raise ImportError(f"a module is called {name!r} already; rename the file")
        return
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def import_named_plugins() -> None:
    """Imports the modules of the environment variable, once per process. Raises: InvalidInput."""
    _import_named(os.environ.get(PLUGINS_VARIABLE, ""))


def plugin_function(entry: str) -> Callable[..., Any]:
    """Returns a function of a module of the environment variable. Settings from elsewhere can name it, so a function of
    any other module is refused.

    entry: `module:function`. Raises: InvalidInput.
    """
    import_named_plugins()
    targets = os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep)
    module, _, name = entry.partition(":")
    is_plugin = module in {Path(target).stem if target.endswith(".py") else target for target in targets if target}
    function = getattr(sys.modules.get(module), name, None) if is_plugin else None
    if not callable(function):
        raise InvalidInput(
            f"cannot use {entry!r}: no such function in a module of --plugin; write module:function, and load the "
            f"module with astraflow --plugin FILE, or {PLUGINS_VARIABLE} in every process",
            code="plugin.function_not_found",
        )
    return function  # type: ignore[no-any-return]  # of a module of the user


@cache
def _import_named(targets: str) -> None:
    for target in targets.split(os.pathsep):
        if target:
            import_plugins(target)


def modules(package: str, kinds: str) -> dict[str, str]:
    """Returns kinds, each with the module of a package that has its name. kinds: separated by spaces."""
    return {kind: f"{package}.{kind}" for kind in kinds.split()}


class Registry(Generic[T]):
    """All plugins of one slot (`selector`, `filter`, `reward`, ...).

    built_in: kind -> module that registers it. A module is imported on first use of its kind, so that heavy engines
    cost nothing until used. Third parties register through the entry point group `astraflow.<noun>s`, one entry per
    kind, which refers to a module that calls `register`, or in a module that `ASTRAFLOW_PLUGINS` names. An unknown kind
    raises an error with the nearest known one.
    heavy: built-in kinds whose modules take seconds to import, or may lack their dependencies. extra: of
    pyproject.toml, with the packages of built-in kinds; extras: those of kinds with another one.
    """

    def __init__(
        self,
        noun: str,
        built_in: Mapping[str, str],
        *,
        heavy: Collection[str] = (),
        extra: str = "train",
        extras: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.noun = noun
        self._extras = {kind: extras.get(kind, extra) for kind in built_in}
        self._built_in = dict(built_in)
        self._heavy = frozenset(heavy)
        self._registered: dict[str, tuple[Callable[..., T], type[Config]]] = {}

    def register(self, kind: str, *, options: type[Config]) -> Callable[[C], C]:
        """Class decorator: `build` calls the class with its parsed options and the slot's context arguments."""

        def decorate(plugin: C) -> C:
            self._registered[kind] = (plugin, options)
            return plugin

        return decorate

    def kinds(self) -> list[str]:
        """Returns all known kinds, sorted. Raises: InvalidInput when a module of the environment does not import."""
        import_named_plugins()
        return sorted({*self._built_in, *self._registered, *(entry.name for entry in self._entries())})

    def built_in_kinds(self) -> list[str]:
        """Returns the kinds that AstraFlow itself has, sorted. Imports nothing."""
        return sorted(self._built_in)

    def options(self, kind: str) -> type[Config]:
        """Returns the options class of a kind. Raises: InvalidInput for an unknown kind, or one that cannot be imported
        here."""
        return self._find({"kind": kind})[1]

    def description(self, kind: str) -> str:
        """Returns the documentation of a kind's plugin. Raises: InvalidInput as `options`."""
        return getdoc(self._find({"kind": kind})[0]) or ""

    def summaries(self) -> dict[str, str]:
        """Returns the first sentence of the documentation of each kind, without its full stop. Raises: as `kinds`.

        It is empty for installed plugins of other packages that were not used yet: they are not imported for it.
        """
        return {
            kind: _first_sentence(self.description(kind))
            if kind in self._registered or (kind in self._built_in and not self.is_heavy(kind))
            else ""
            for kind in self.kinds()
        }

    def is_heavy(self, kind: str) -> bool:
        """Returns whether looking up this kind imports a module that is heavy or of unknown weight."""
        return kind not in self._registered and self.has_heavy_module(kind)

    def has_heavy_module(self, kind: str) -> bool:
        """Returns whether the module of this kind is heavy or of unknown weight, also when it was imported before."""
        if kind in self._built_in:
            return kind in self._heavy
        return any(entry.name == kind for entry in self._entries())

    def build(self, spec: Mapping[str, Any], *context: Any, **named: Any) -> T:
        """Builds the plugin of `spec`: `{"kind": ..., <options>}`.

        Raises: InvalidInput for an unknown kind or invalid options.
        """
        factory, options_type = self._find(spec)
        options = options_type.parse(_options_of(spec), where=f"{self.noun} {spec['kind']}")
        try:
            return factory(options, *context, **named)
        except TypeError:
            self._check_parameters(spec["kind"], factory, options, *context, **named)
            raise

    def check(self, spec: Mapping[str, Any], *, where: str = "", origin: ValueOrigin | None = None) -> Config:
        """Validates `spec` without building; returns the options. where, origin: of the spec, as those of
        `Config.parse`; empty: the kind. Raises: InvalidInput, whose message begins with the setting."""
        try:
            _, options_type = self._find(spec)
        except InvalidInput as problem:
            prefix = f"{origin(('kind',))}: " if origin else ""
            raise InvalidInput(
                f"{prefix}{where}.kind: {problem}" if where else str(problem), code=problem.code
            ) from None
        return options_type.parse(_options_of(spec), where=where or f"{self.noun} {spec['kind']}", origin=origin)

    def nested(self, spec: Mapping[str, Any]) -> "Iterator[tuple[tuple[str, ...], Registry[Any], Mapping[str, Any]]]":
        """Yields the plugins inside the options of a plugin: their path below it, their registry, and their spec.

        An option has plugins if its annotation names their registry, as in `Annotated[dict[str, Any], environments]`;
        a tuple has several. Plugins of heavy or unknown kinds are not looked into.
        """
        kind = str(spec.get("kind"))
        if self.is_heavy(kind):
            return
        try:
            fields = self.options(kind).model_fields
        except InvalidInput:  # the check of the plugin itself reports it
            return
        for name in fields:
            if registry := self.inner_registry(kind, name):
                for path, inner in _specs_in(spec.get(name)):
                    yield (name, *path), registry, inner
                    for below, inner_registry, innermost in registry.nested(inner):
                        yield (name, *path, *below), inner_registry, innermost

    def inner_registry(self, kind: str, option: str) -> "Registry[Any] | None":
        """Returns the registry of the plugins in an option of a kind; None for an option without plugins. Raises:
        InvalidInput as `options`."""
        info = self.options(kind).model_fields.get(option)
        return next((mark for mark in info.metadata if isinstance(mark, Registry)), None) if info else None

    def _find(self, spec: Mapping[str, Any]) -> tuple[Callable[..., T], type[Config]]:
        kind = spec.get("kind")
        if not isinstance(kind, str):
            raise InvalidInput(
                f"cannot use {self.noun}: it has no 'kind'; known: {', '.join(self.kinds())}",
                code="plugin.missing_kind",
            )
        if kind not in self._registered:
            self._load(kind)
        if kind not in self._registered:
            targets = os.environ.get(PLUGINS_VARIABLE, "")
            remedy = "for a plugin of your own, name its file: astraflow --plugin FILE COMMAND"
            if targets:
                remedy = f"{targets} registers no {self.noun} of this kind: check the decorator `register`"
            raise InvalidInput(
                f"cannot use {self.noun} {kind!r}: unknown kind; {suggest_name(kind, self.kinds())}; {remedy}",
                code="plugin.unknown_kind",
            )
        return self._registered[kind]

    def _check_parameters(self, kind: str, factory: Callable[..., T], *context: Any, **named: Any) -> None:
        """Raises: InvalidInput when the plugin cannot be called with these arguments."""
        try:
            signature(factory).bind(*context, **named)
        except TypeError as problem:
            raise InvalidInput(
                f"cannot build {self.noun} {kind!r}: {problem}; let its class take the options, and what the built-in "
                "ones take",
                code="plugin.wrong_parameters",
            ) from problem

    def _load(self, kind: str) -> None:
        with needs_extra(self._extras.get(kind, ""), to=f"use {self.noun} {kind!r}"):
            if kind in self._built_in:
                import_module(self._built_in[kind])
                return
            import_named_plugins()
            for entry in self._entries():
                if entry.name == kind:
                    entry.load()

    def _entries(self) -> Sequence[EntryPoint]:
        return _entry_points(tuple(sys.path)).get(f"astraflow.{self.noun}s", ())


@cache
def _entry_points(search_path: tuple[str, ...]) -> Mapping[str, Sequence[EntryPoint]]:
    """Returns the entry points of AstraFlow's groups of all packages on the search path, by group. Finding them reads a
    file of each package, which takes about 20 ms; one launch form needs them dozens of times, and so does every
    report."""
    every = entry_points()
    return {group: tuple(every.select(group=group)) for group in every.groups if group.startswith("astraflow.")}


@cache
def _first_sentence(text: str) -> str:
    """Returns the first sentence of a docstring, on one line and without its full stop."""
    return re.split(r"\.(?= [A-Z]|$)", " ".join(text.split()), maxsplit=1)[0]


def _specs_in(value: object) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yields the specs in an option, with their index if it is a list."""
    if isinstance(value, Mapping):
        yield (), value
    elif isinstance(value, list | tuple):
        yield from (((str(index),), item) for index, item in enumerate(value) if isinstance(item, Mapping))


def _options_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "kind"}


@runtime_checkable
class ManagedPlugin(Protocol):
    """A plugin with resources. Its constructor is cheap and acquires nothing, because recipes are checked by building
    their plugins; the owner calls `start` before the first use and `close` at the end."""

    async def start(self) -> None:
        """Acquires the resources, or raises an error that says what is missing."""

    async def close(self) -> None:
        """Releases them. Idempotent; also called after a failed start."""


async def start_managed(plugins: Iterable[object], resources: AsyncExitStack) -> None:
    """Starts those of the plugins that are managed, in order; `resources` closes them in reverse order."""
    for plugin in plugins:
        if isinstance(plugin, ManagedPlugin):
            resources.push_async_callback(plugin.close)
            await plugin.start()
