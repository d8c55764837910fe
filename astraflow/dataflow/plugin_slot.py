"""Plugins of one slot of a run, in order and with labels. They are saved, measured and changed together."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.plugins import PlannedPlugins, PluginSlot, PluginSpec, plugin_labels
from astraflow.contract.values import Json
from astraflow.dataflow.storage.prompt_rows import RowProvider
from astraflow.runtime.plugins import Registry, load_plugin_file


class SavedCounts:
    """Base of data algorithms whose whole state is in attributes, such as counts; it is empty by default."""

    saved: ClassVar[tuple[str, ...]] = ()
    """Keys of the state. The attribute of `key` is `_key`; its value is JSON."""

    def state_dict(self) -> dict[str, Json]:
        return {key: copy(getattr(self, f"_{key}")) for key in self.saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key in self.saved:
            setattr(self, f"_{key}", copy(state[key]))

    def metrics(self) -> dict[str, float]:
        return {}


class Plugin(Protocol):
    """Interface common to all data algorithms."""

    def state_dict(self) -> dict[str, Json]:
        """Returns the state for `load_state_dict` as JSON; it must be small, since every commit writes it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the plugin for the report."""


P = TypeVar("P", bound=Plugin)

PluginBuilder: TypeAlias = Callable[[PluginSpec], P]
"""Builds the plugin of a spec. Raises: InvalidInput."""


class SlotPlugins(Generic[P]):
    """The plugins of one slot, labelled by kind; the second of a kind is labelled `kind 2`.

        configured ────────────────────────► active ────┐
                   plan ─► planned ─activate_planned────┘

    A plugin loads the state of its label; a plugin with a new label starts without state. Changes made during a run are
    part of the state and survive restarts, until they are changed again or the configuration changes.
    """

    def __init__(self, slot: PluginSlot, specs: Iterable[PluginSpec], build: PluginBuilder[P]) -> None:
        self.slot = slot
        self._build = build
        self._configured = self.specs = _normalized(specs)
        """Active specs."""
        self.files: list[str] = []
        """Python files that changes during the run have loaded, absolute paths in order."""
        self.planned: PlannedPlugins | None = None
        """The next specs, None if no change is planned."""
        self._plugins = self._build_all(self.specs)
        self._planned_plugins: dict[str, P] = {}
        self.unloaded: dict[str, tuple[Exception, str]] = {}
        """Errors of the plugins that could not load their saved state, and the state, by label."""

    def __iter__(self) -> Iterator[tuple[str, P]]:
        return iter(self._plugins.items())

    @property
    def first_plugin(self) -> tuple[str, P]:
        """Label and plugin of a slot with a single plugin."""
        return next(iter(self._plugins.items()))

    def check(self, specs: Iterable[PluginSpec], registry: Registry[Any], *, where: str) -> None:
        """Checks that these plugins can be built. Raises: InvalidInput that begins with the path in the recipe."""
        for position, spec in enumerate(specs):
            path = f"{where}.{position}" if self.slot is PluginSlot.FILTERS else where
            registry.check(spec, where=path)
            try:
                self._build(spec)
            except InvalidInput as problem:
                raise InvalidInput(f"{path}: {problem}", code=problem.code) from None

    def plan(self, specs: Iterable[PluginSpec], *, actor: str, reason: str, version: Version) -> None:
        """Plans these specs; planning the active specs cancels an earlier plan. Raises: InvalidInput."""
        wanted = _normalized(specs)
        self._planned_plugins, self.planned = {}, None
        if wanted != self.specs:
            self._planned_plugins = self._build_all(wanted)
            self.planned = PlannedPlugins(slot=self.slot, specs=wanted, actor=actor, reason=reason, version=version)

    def activate_planned(self) -> dict[str, str]:
        """Activates the planned plugins; returns the cause for each label that could not keep its state."""
        if self.planned is None:
            return {}
        previous, self._plugins = self._plugins, self._planned_plugins
        self.specs, self.planned, self._planned_plugins = _normalized(self.planned.specs), None, {}
        return {
            label: refusal
            for label in list(self._plugins)
            if label in previous and (refusal := self._transfer_state(label, previous[label])) is not None
        }

    def state_dict(self) -> dict[str, Json]:
        """Returns configured, active and planned specs, and the state of each plugin."""
        return {
            "configured": list(self._configured),
            "specs": list(self.specs),
            "planned": None if self.planned is None else _json(self.planned),
            "files": list(self.files),
            "plugins": {label: plugin.state_dict() for label, plugin in self},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state. Raises: InvalidInput when the plugins of a change during the run cannot be built."""
        if _normalized(state["configured"]) == self._configured:
            self._restore_changes(state)
        for label in list(self._plugins):
            if label in state["plugins"]:
                self._load(label, state["plugins"][label])

    def _load(self, label: str, state: Mapping[str, Any]) -> None:
        """Loads the state of a plugin; one that cannot load it begins without. Raises: InvalidInput of the plugin."""
        try:
            self._plugins[label].load_state_dict(state)
        except InvalidInput:
            raise
        except Exception as problem:  # a plugin may fail with anything on the state of another release
            self._plugins[label] = self._build_all(self.specs)[label]
            self.unloaded[label] = (problem, json.dumps(state))

    def metrics(self) -> dict[str, float]:
        return {f"{label}.{name}": value for label, plugin in self for name, value in plugin.metrics().items()}

    def _restore_changes(self, state: Mapping[str, Any]) -> None:
        planned = state["planned"]
        try:
            for file in state["files"]:
                load_plugin_file(Path(file))
            self.files = list(state["files"])
            self.specs = _normalized(state["specs"])
            self._plugins = self._build_all(self.specs)
            if planned is not None:
                version = Version(planned["version"])
                self.plan(planned["specs"], actor=planned["actor"], reason=planned["reason"], version=version)
        except InvalidInput as problem:
            raise InvalidInput(
                f"cannot restore the {self.slot.value} that was changed during this run: {problem}; install the "
                f"missing plugin, or edit {self.slot.value} in the recipe to discard the change",
                code="plugins.cannot_restore",
            ) from None

    def _build_all(self, specs: Iterable[PluginSpec]) -> dict[str, P]:
        specs = tuple(specs)
        plugins = [self._build(spec) for spec in specs]
        return dict(zip(plugin_labels(specs), plugins, strict=True))

    def _transfer_state(self, label: str, previous: P) -> str | None:
        """Transfers the state as a restart does; returns the cause if the new plugin rejects it."""
        plugin = self._plugins[label]
        try:
            plugin.load_state_dict(json.loads(json.dumps(previous.state_dict())))
            if isinstance(plugin, RowProvider) and isinstance(previous, RowProvider):
                plugin.load_rows(previous.all_rows())
        except Exception as problem:  # a third-party plugin may raise anything
            self._plugins[label] = self._build_all(self.specs)[label]
            return f"{type(problem).__name__}: {problem}"
        return None


def _normalized(specs: Iterable[PluginSpec]) -> tuple[dict[str, Any], ...]:
    """Normalizes specs through JSON, so that equal specs stay equal after a restart."""
    return tuple(json.loads(json.dumps(dict(spec))) for spec in specs)


def _json(planned: PlannedPlugins) -> dict[str, Json]:
    return {
        "specs": [dict(spec) for spec in planned.specs],
        "actor": planned.actor,
        "reason": planned.reason,
        "version": int(planned.version),
    }
