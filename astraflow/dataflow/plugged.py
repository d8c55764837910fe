"""The plug-ins of one seam as a run holds them: in order, labelled, saved and measured together, and changed."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.plugins import PlannedPlugins, PluginSpec, Seam
from astraflow.contract.values import Json
from astraflow.dataflow.rows import RowKeeper


class Plugin(Protocol):
    """What every data algorithm can do besides deciding."""

    def state_dict(self) -> dict[str, Json]:
        """What `load_state_dict` needs, as JSON; small, since it is written with every commit."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""

    def metrics(self) -> dict[str, float]:
        """Its own figures for the report."""


P = TypeVar("P", bound=Plugin)

Build: TypeAlias = Callable[[PluginSpec], P]
"""Makes the plug-in of a spec. Raises: InvalidInput."""


class Plugged(Generic[P]):
    """The plug-ins that one seam's specs ask for, under their kinds; the second of a kind is `kind 2`.

        configured ─────────────► in force ──┐
                   plan ─► planned ─take_over┘

    A state is loaded by the plug-in of the same label: one that was not there before begins anew. What was changed
    while the run ran is part of the state and stays over restarts, until it is changed again or configured otherwise.
    """

    def __init__(self, seam: Seam, specs: Iterable[PluginSpec], build: Build[P]) -> None:
        self.seam = seam
        self._build = build
        self._configured = self.specs = _plain(specs)
        """Those in force."""
        self.planned: PlannedPlugins | None = None
        """What takes over next."""
        self._plugins = self._built(self.specs)
        self._next: dict[str, P] = {}

    def __iter__(self) -> Iterator[tuple[str, P]]:
        return iter(self._plugins.items())

    @property
    def first(self) -> tuple[str, P]:
        """The only one, at a seam that has one; under its label."""
        return next(iter(self))

    def check(self, specs: Iterable[PluginSpec], *, where: str) -> None:
        """Whether these can take over. Raises: InvalidInput that begins with the place, as a recipe's does."""
        for number, spec in enumerate(specs):
            try:
                self._build(spec)
            except InvalidInput as problem:
                place = f"{where}.{number}" if self.seam is Seam.FILTERS else where
                raise InvalidInput(f"{place}: {problem}") from None

    def plan(self, specs: Iterable[PluginSpec], *, actor: str, reason: str, version: Version) -> None:
        """Have these take over; those in force take back what was planned. Raises: InvalidInput."""
        wanted = _plain(specs)
        self._next, self.planned = {}, None
        if wanted != self.specs:
            self._next = self._built(wanted)
            self.planned = PlannedPlugins(seam=self.seam, specs=wanted, actor=actor, reason=reason, version=version)

    def take_over(self) -> dict[str, str]:
        """Put the planned ones in force; tells which of a known label could not go on with its state, and why."""
        if self.planned is None:
            return {}
        before, self._plugins = self._plugins, self._next
        self.specs, self.planned, self._next = _plain(self.planned.specs), None, {}
        return {
            label: refusal
            for label in list(self._plugins)
            if label in before and (refusal := self._carry(label, before[label])) is not None
        }

    def state_dict(self) -> dict[str, Json]:
        """Which plug-ins there are and are to be, and the state of each."""
        return {
            "configured": list(self._configured),
            "specs": list(self.specs),
            "planned": None if self.planned is None else _json(self.planned),
            "plugins": {label: plugin.state_dict() for label, plugin in self},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises: InvalidInput when what the run was changed to cannot be built any more."""
        if _plain(state["configured"]) == self._configured:
            self._restore_changes(state)
        for label, plugin in self:
            if label in state["plugins"]:
                plugin.load_state_dict(state["plugins"][label])

    def metrics(self) -> dict[str, float]:
        """Every plug-in's, as `label.metric`."""
        return {f"{label}.{name}": value for label, plugin in self for name, value in plugin.metrics().items()}

    def _restore_changes(self, state: Mapping[str, Any]) -> None:
        planned = state["planned"]
        try:
            self.specs = _plain(state["specs"])
            self._plugins = self._built(self.specs)
            if planned is not None:
                version = Version(planned["version"])
                self.plan(planned["specs"], actor=planned["actor"], reason=planned["reason"], version=version)
        except InvalidInput as problem:
            raise InvalidInput(
                f"the {self.seam.value} of this run was changed while it ran, which cannot be done here: {problem}; "
                f"install what is missing, or edit {self.seam.value} in the recipe, which then holds"
            ) from None

    def _built(self, specs: Iterable[PluginSpec]) -> dict[str, P]:
        plugins: dict[str, P] = {}
        for spec in specs:
            plugin, kind = self._build(spec), str(spec["kind"])
            same = sum(label.partition(" ")[0] == kind for label in plugins)
            plugins[f"{kind} {same + 1}" if same else kind] = plugin
        return plugins

    def _carry(self, label: str, before: P) -> str | None:
        """Hand a state on, the way that a restart does; why not, if it is refused: then the new one begins anew."""
        plugin = self._plugins[label]
        try:
            plugin.load_state_dict(json.loads(json.dumps(before.state_dict())))
            if isinstance(plugin, RowKeeper) and isinstance(before, RowKeeper):
                plugin.load_rows(before.all_rows())
        except Exception as problem:  # a third party's plug-in says no in its own way
            self._plugins[label] = self._built(self.specs)[label]
            return f"{type(problem).__name__}: {problem}"
        return None


def _plain(specs: Iterable[PluginSpec]) -> tuple[dict[str, Any], ...]:
    """As they are after a journey through JSON, so that equal ones are equal after a restart too."""
    return tuple(json.loads(json.dumps(dict(spec))) for spec in specs)


def _json(planned: PlannedPlugins) -> dict[str, Json]:
    return {
        "specs": [dict(spec) for spec in planned.specs],
        "actor": planned.actor,
        "reason": planned.reason,
        "version": int(planned.version),
    }
