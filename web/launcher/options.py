"""Start options of a run besides its recipe, with defaults from the recipe or an earlier run."""

from dataclasses import dataclass, replace
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.contract.launching import RecipeForm
from astraflow.runtime.folders.launch_facts import LaunchFacts
from web.components.formats import exact
from web.process_settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Start options of a run besides its recipe."""

    has_fleet: bool = False
    """Whether a fleet service starts the nodes."""
    ends_by_itself: bool = True
    """Whether it ends when a stop condition is met."""
    limit_s: float | None = None
    """Time after which it ends in any case, in seconds; None for no limit."""
    fork_step: int | None = None
    """Step of the earlier run in whose checkpoint it begins; None for new weights."""
    has_fresh_optimizer: bool = False
    """Whether a fork begins with a new state of the optimizer."""
    host: str = ""
    """Address to listen on for remote nodes, over TLS; empty for loopback."""
    advertise: str = ""
    """Other name under which remote nodes reach this host; empty for none."""

    @classmethod
    def of_launch(cls, facts: LaunchFacts) -> "LaunchOptions":
        """Returns the options of an earlier launch."""
        return cls(has_fleet=facts.has_fleet, ends_by_itself=facts.ends_by_itself, limit_s=facts.limit_s)

    @property
    def command(self) -> str:
        """Command of `astraflow` that launches it."""
        return "run" if self.fork_step is None else "fork"

    def target(self, location: str) -> str:
        """Returns the argument of the command. location: of the recipe, or of the snapshot of the earlier run."""
        return location if self.fork_step is None else str(Path(location).parent)

    def arguments(self) -> list[str]:
        """Returns the options as arguments of the command."""
        arguments = ["--fleet"] if self.has_fleet else []
        arguments += [] if self.fork_step is None else ["--step", str(self.fork_step)]
        arguments += ["--fresh-optimizer"] if self.fork_step is not None and self.has_fresh_optimizer else []
        arguments += ["--headless"] if self.ends_by_itself else []
        arguments += ["--limit-s", exact(self.limit_s)] if self.limit_s else []
        arguments += ["--host", self.host] if self.host else []
        return arguments + (["--advertise", self.advertise] if self.advertise else [])


def with_join_address(options: LaunchOptions, form: RecipeForm, settings: Settings) -> LaunchOptions:
    """Returns the options with the join address, for a run with remote nodes.

    Raises: InvalidInput without a configured address, since remote nodes would join their own loopback.
    """
    if not (options.has_fleet and form.pools_elsewhere):
        return options
    if not settings.join_host:
        pools = ", ".join(form.pools_elsewhere)
        raise InvalidInput(
            f"cannot launch with remote pools {pools}: their nodes cannot reach the run, which listens on loopback; "
            "start the web service with --join-host ADDRESS, the address of this host for them (and with --join-name "
            "NAME, if it has another name there), or launch without a fleet service",
            code="launch.no_join_address",
        )
    return replace(options, host=settings.join_host, advertise=settings.join_name)
