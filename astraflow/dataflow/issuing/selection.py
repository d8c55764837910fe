"""The port of selectors: the data algorithm before rollout."""

from collections.abc import Mapping
from typing import Protocol

from astraflow.contract.tasks import Json


class Selector(Protocol):
    """Chooses the next prompt. Built by `selectors.build(spec, size, seed)`, `size` the number of prompts.

    Its state must be all that its next choice depends on: a restarted run goes on as if it had not stopped.
    """

    def select(self) -> int:
        """Index of the next prompt, `0 <= index < size`."""

    def observe(self, index: int, rewards: tuple[float, ...]) -> None:
        """Learn what a finished group of that prompt scored, before any filter."""

    def state_dict(self) -> dict[str, Json]:
        """What `load_state_dict` needs, as JSON."""

    def load_state_dict(self, state: Mapping[str, Json]) -> None:
        """Go on from there."""

    def metrics(self) -> dict[str, float]:
        """Its own figures for the report."""
