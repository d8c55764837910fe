"""Interface of environments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Observation of the policy at the beginning of an episode or after an action."""

    text: str
    actions: tuple[str, ...] = ()
    """Actions that are possible now; empty when they are not enumerated."""
    reward: float = 0.0
    """Reward of the step. The rewards of an episode are summed."""
    ending: Ending | None = None
    """Set by the last observation of an episode."""
    is_malformed: bool = False
    """The action could not be read. The state did not change, and `text` says what is expected."""
    state: str = ""
    """State for people who inspect the episode, such as the inventory. The policy does not see it."""
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    """Terms of a reward with several."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the episode; the last value of each name counts."""


class Environment(Protocol):
    """Environment of one episode, used once.

    It is a deterministic function of prompt, seed and actions, because a task that another node handed back is replayed
    with the recorded answers of the policy.
    """

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        """Starts the episode. Raises: InvalidInput for a prompt of another kind; RolloutFailed at the boundary
        `environment` when the environment does not work."""

    async def act(self, action: str) -> Observation:
        """Performs an action. A wrong action is answered with an observation and never raises.

        Raises: RolloutFailed at the boundary `environment` when the environment does not work.
        """

    async def close(self) -> None:
        """Releases the episode's resources. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLimits:
    """Limits that a workflow applies to each environment of a factory."""

    concurrency: int = 0
    """Number of environments that may exist at once on a node; further episodes wait. 0: no limit."""
    begin_s: float = 60.0
    """Timeout of `begin`."""
    act_s: float = 30.0
    """Timeout of `act`."""
    replays_failures: bool = False
    """Performs the actions of an episode again, in another environment, when `act` fails. If that fails at the same
    action, the policy caused it: the episode ends with the least reward of the flow's episodes on the node, so that no
    reward can be avoided. Otherwise the episode fails. For environments of others, in which an action may raise."""


class EnvironmentFactory(Protocol):
    """Creates environments. Built by `environments.build(spec)` once for each flow on every node; a `ManagedPlugin`
    when it owns processes or connections.

    A plugin is a class in a module that registers itself; list the module under the entry point group
    `astraflow.environments`:

        @environments.register("maze", options=MazeOptions)
        class MazeFactory:
            def __init__(self, options: MazeOptions) -> None: ...
    """

    @property
    def limits(self) -> EnvironmentLimits:
        """Limits of its environments."""

    def make(self) -> Environment:
        """Returns a new environment; does no work."""

    async def check(self) -> None:
        """Checks that environments work on this machine. Raises: InvalidInput or Unavailable with the remedy."""
