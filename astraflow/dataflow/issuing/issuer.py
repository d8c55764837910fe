"""Where a flow's groups come from; for those that are trained on, a selector's choices."""

from collections.abc import Mapping
from typing import Any, Protocol

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, PolicyId, Version
from astraflow.contract.values import Json
from astraflow.dataflow.issuing.groups import OpenGroup
from astraflow.dataflow.issuing.selection import Selector
from astraflow.dataflow.plugged import Plugged
from astraflow.dataflow.rows import RowKeeper
from astraflow.datasets.base import Dataset
from astraflow.runtime.logs import get_logger

log = get_logger()


class GroupSource(Protocol):
    """The source of a flow's groups. Its state is all that its next group depends on."""

    @property
    def issued(self) -> int:
        """Groups issued since the run began; the ordinal of the next one."""

    @property
    def version(self) -> Version:
        """That every policy of the flow has reached."""

    @property
    def plugged(self) -> Plugged[Selector] | None:
        """What chooses the prompts, where that may be changed."""

    def next_group(self) -> OpenGroup:
        """Issue one group."""

    def observe(self, group: OpenGroup) -> None:
        """Every member of a group has a result."""

    def advance(self, version: Version) -> None:
        """Every policy of the flow has reached this version."""

    @property
    def rows(self) -> tuple[str, RowKeeper] | None:
        """What it keeps in rows, and under which name, if anything."""

    def metrics(self) -> dict[str, float]:
        """Its own figures for the report."""

    def state_dict(self) -> dict[str, Json]:
        """What `load_state_dict` needs, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""


class Issuer:
    """Groups that are trained on. Its state is the data cursor: a resumed run neither skips nor repeats a prompt."""

    def __init__(self, flow: FlowId, dataset: Dataset, selector: Plugged[Selector], *, group_size: int) -> None:
        self._flow = flow
        self._dataset = dataset
        self._data = dataset.fingerprint
        self.plugged = selector
        self._group_size = group_size
        self.issued = 0
        """Groups issued since the run began; the ordinal of the next one."""
        self.version = Version(0)
        """That every policy of the flow has reached."""

    def next_group(self) -> OpenGroup:
        """Issue one group of the prompt that the selector chooses."""
        index = self._selector.select()
        group = OpenGroup(
            id=GroupId(f"{self._flow}:{self.issued}"),
            flow=self._flow,
            prompt=self._dataset.prompt(index),
            index=index,
            size=self._group_size,
        )
        self.issued += 1
        return group

    def observe(self, group: OpenGroup) -> None:
        """Tell the selector how a group came out, before any filter."""
        rewards: dict[PolicyId, tuple[float, ...]] = {}
        for episode in group.episodes.values():
            for trajectory in episode.trajectories if episode.failure is None else ():
                rewards[trajectory.policy] = (*rewards.get(trajectory.policy, ()), trajectory.reward)
        try:
            self._selector.observe(group.index, rewards)
        except Exception:  # whatever a third party's raises: the push it came with must not be half taken
            log.exception("selector_broke", group=group.id)

    def advance(self, version: Version) -> None:
        """Tell the selector that every policy of the flow has reached a version, once."""
        if version > self.version:
            self.version = version
            self._selector.advance(version)

    @property
    def rows(self) -> tuple[str, RowKeeper] | None:
        """The selector under its kind, when part of its state is in rows."""
        kind, selector = self.plugged.first
        return (kind, selector) if isinstance(selector, RowKeeper) else None

    def metrics(self) -> dict[str, float]:
        """The selector's, as `kind.metric`."""
        return self.plugged.metrics()

    def state_dict(self) -> dict[str, Json]:
        """Cursor and selector, and which data they are about."""
        return {
            "data": self._data,
            "issued": self.issued,
            "version": int(self.version),
            "selector": self.plugged.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises: InvalidInput when the data set is another one by now."""
        check_data(self._flow, was=state["data"], now=self._data)
        self.issued = state["issued"]
        self.version = Version(state["version"])
        self.plugged.load_state_dict(state["selector"])

    @property
    def _selector(self) -> Selector:
        return self.plugged.first[1]


def check_data(flow: FlowId, *, was: str, now: str) -> None:
    """Fingerprints of a flow's data set, then and now. Raises: InvalidInput when it is another one by now."""
    if was != now:
        raise InvalidInput(
            f"the data set of flow {flow!r} is not the one that this run began with, so it would skip and "
            f"repeat prompts (it was {was}, it is {now}): put the data back as it was, or name "
            "the flow otherwise to begin with the new data, or begin a new run"
        )
