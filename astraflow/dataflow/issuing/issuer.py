"""Sources of a flow's groups. For training, a selector chooses the prompts."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from astraflow.contract.batches import stretches
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, PolicyId, Version
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Episode, Trajectories, base_role_of
from astraflow.contract.values import Json
from astraflow.dataflow.issuing.groups import OpenGroup
from astraflow.dataflow.issuing.selectors import Selector
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.dataflow.storage.prompt_rows import RowProvider
from astraflow.datasets.base import Dataset
from astraflow.runtime.logs import get_logger

log = get_logger()

MAX_UNUSABLE = 100
"""Prompts in a row that may be unusable; then it is the dataset that cannot be used. Count."""


class GroupSource(Protocol):
    """Source of a flow's groups. Its state is everything that its next group depends on."""

    @property
    def issued(self) -> int:
        """Number of groups issued since the run began; the ordinal of the next group."""

    @property
    def version(self) -> Version:
        """Newest version that every policy of the flow has reached."""

    @property
    def slot_plugins(self) -> SlotPlugins[Selector] | None:
        """Slot of the plugin that chooses prompts, None if it cannot be changed."""

    unusable: list[str]
    """Causes of prompts that were left out, because their rows cannot be used; the flow empties it."""

    def next_group(self) -> OpenGroup:
        """Issues one group."""

    def observe(self, group: OpenGroup) -> None:
        """Observes a group whose members all have a result."""

    def advance(self, version: Version) -> None:
        """Sets the newest version that every policy of the flow has reached."""

    @property
    def rows(self) -> tuple[str, RowProvider] | None:
        """Name and provider of the state that is stored in rows, None without rows."""

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the source for the report."""

    def state_dict(self) -> dict[str, Json]:
        """Returns the state for `load_state_dict`, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""


class Issuer:
    """Issues training groups. Its state is the data cursor: a resumed run neither skips nor repeats a prompt."""

    def __init__(self, flow: FlowId, dataset: Dataset, selector: SlotPlugins[Selector], *, group_size: int) -> None:
        self._flow = flow
        self._dataset = dataset
        self._fingerprint = dataset.fingerprint
        self.slot_plugins = selector
        self._group_size = group_size
        self.issued = 0
        """Number of groups issued since the run began; the ordinal of the next group."""
        self.version = Version(0)
        """Newest version that every policy of the flow has reached."""
        self.unusable: list[str] = []
        """Causes of prompts that were left out and not reported yet."""

    def next_group(self) -> OpenGroup:
        """Issues one group of the prompt that the selector chooses."""
        index, prompt = usable_prompt(self._dataset, self._selector.select, self.unusable)
        group = OpenGroup(
            id=GroupId(f"{self._flow}:{self.issued}"),
            flow=self._flow,
            prompt=prompt,
            prompt_index=index,
            size=self._group_size,
        )
        self.issued += 1
        return group

    def observe(self, group: OpenGroup) -> None:
        """Passes the rewards of a finished group to the selector, before any filter."""
        try:
            self._selector.observe(group.prompt_index, _rewards_of(group.episodes.values()))
        except Exception:  # a third-party selector may raise anything; a push must be applied completely
            log.exception("selector_failed", group=group.id)

    def advance(self, version: Version) -> None:
        """Reports each version that every policy of the flow has reached to the selector, once."""
        if version > self.version:
            self.version = version
            self._selector.advance(version)

    @property
    def rows(self) -> tuple[str, RowProvider] | None:
        """The selector under its kind, when part of its state is stored in rows."""
        kind, selector = self.slot_plugins.first_plugin
        return (kind, selector) if isinstance(selector, RowProvider) else None

    def metrics(self) -> dict[str, float]:
        """Returns the selector's metrics, named `kind.metric`."""
        return self.slot_plugins.metrics()

    def state_dict(self) -> dict[str, Json]:
        """Returns the cursor, the selector's state, and the fingerprint of the dataset."""
        return {
            "data": self._fingerprint,
            "issued": self.issued,
            "version": int(self.version),
            "selector": self.slot_plugins.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state. Raises: InvalidInput when the dataset has changed."""
        check_dataset_unchanged(self._flow, saved_fingerprint=state["data"], current_fingerprint=self._fingerprint)
        self.issued = state["issued"]
        self.version = Version(state["version"])
        self.slot_plugins.load_state_dict(state["selector"])

    @property
    def _selector(self) -> Selector:
        return self.slot_plugins.first_plugin[1]


def usable_prompt(dataset: Dataset, select: Callable[[], int], unusable: list[str]) -> tuple[int, Prompt]:
    """Returns the first selected prompt that can be used, with its index: a row that no check at the start has read may
    be unusable.

    unusable: gets the causes of those that are left out. Raises: InvalidInput after `MAX_UNUSABLE` of them.
    """
    for _ in range(MAX_UNUSABLE):
        index = select()
        try:
            return index, dataset.prompt(index)
        except InvalidInput as problem:
            unusable.append(str(problem))
            cause = problem
    raise cause


def check_dataset_unchanged(flow: FlowId, *, saved_fingerprint: str, current_fingerprint: str) -> None:
    """Compares the saved and the current fingerprint of a flow's dataset. Raises: InvalidInput when they differ."""
    if saved_fingerprint != current_fingerprint:
        raise InvalidInput(
            f"cannot resume flow {flow!r}: its dataset has changed (fingerprint was {saved_fingerprint!r}, is "
            f"{current_fingerprint!r}), so prompts would be skipped and repeated; restore the data, rename the flow to "
            "begin with the new data, or start a new run",
            code="dataset.changed",
        )


def _rewards_of(episodes: Iterable[Episode]) -> dict[str, tuple[float, ...]]:
    """Returns the rewards of episodes without a failure, by policy and role. Trajectories of an episode and a role that
    share one reward, such as the branches of an agent's session, count once."""
    parts = [Trajectories.of(episode.trajectories) for episode in episodes if episode.failure is None]
    joined = stretches(parts)
    rewards: dict[str, list[float]] = {}
    for part in parts if any(any(part.roles()) for part in joined) else joined:
        by_role: dict[tuple[PolicyId, str], list[float]] = {}
        for policy, role, reward in zip(part.policies, part.roles(), part.rewards, strict=True):
            by_role.setdefault((policy, role), []).append(reward)
        for (policy, role), own in by_role.items():
            slot: str = f"{policy}/{base_role_of(role)}" if role else policy
            rewards.setdefault(slot, []).extend(own[:1] if role and len(set(own)) == 1 else own)
    return {slot: tuple(own) for slot, own in rewards.items()}
