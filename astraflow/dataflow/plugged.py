"""The plug-ins of one seam as a run holds them: in order, labelled, saved and measured together."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from astraflow.contract.tasks import Json


class Plugin(Protocol):
    """What every data algorithm can do besides deciding."""

    def state_dict(self) -> dict[str, Json]:
        """What `load_state_dict` needs, as JSON; small, since it is written with every commit."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""

    def metrics(self) -> dict[str, float]:
        """Its own figures for the report."""


P = TypeVar("P", bound=Plugin)


class Plugged(Generic[P]):
    """Plug-ins under their kinds; the second of a kind is `kind 2`.

    A state is loaded by the plug-in of the same label: one that was not there before the restart begins anew.
    """

    def __init__(self, plugins: Iterable[tuple[str, P]]) -> None:
        self._plugins: dict[str, P] = {}
        for kind, plugin in plugins:
            self._plugins[self._free_label(kind)] = plugin

    def __iter__(self) -> Iterator[tuple[str, P]]:
        return iter(self._plugins.items())

    def state_dict(self) -> dict[str, Json]:
        """Every plug-in's."""
        return {label: plugin.state_dict() for label, plugin in self}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for label, plugin in self:
            if label in state:
                plugin.load_state_dict(state[label])

    def metrics(self) -> dict[str, float]:
        """Every plug-in's, as `label.metric`."""
        return {f"{label}.{name}": value for label, plugin in self for name, value in plugin.metrics().items()}

    def _free_label(self, kind: str) -> str:
        same = sum(label.partition(" ")[0] == kind for label in self._plugins)
        return f"{kind} {same + 1}" if same else kind
