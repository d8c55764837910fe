"""How a run is started, besides its recipe: as the recipe or an earlier run has it, unless somebody says otherwise."""

from dataclasses import dataclass, replace

from astraflow.contract.errors import InvalidInput
from web.launching.catalogue import RecipeForm
from web.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How a run is started, besides its recipe."""

    has_fleet: bool = False
    """A fleet service starts the nodes."""
    ends_by_itself: bool = True
    """It ends when it has learned, or may go no further."""
    limit_s: float | None = None
    """It ends after that many seconds either way."""
    host: str = ""
    """Address to listen on, so that machines elsewhere can join, over TLS; empty for loopback."""
    advertise: str = ""
    """Under which other name they reach it; empty for none."""

    def arguments(self) -> list[str]:
        """As `astraflow run` takes them."""
        chosen = ["--fleet"] if self.has_fleet else []
        chosen += ["--headless"] if self.ends_by_itself else []
        chosen += ["--limit-s", f"{self.limit_s:g}"] if self.limit_s else []
        chosen += ["--host", self.host] if self.host else []
        return chosen + (["--advertise", self.advertise] if self.advertise else [])


def reachable(options: LaunchOptions, form: RecipeForm, settings: Settings) -> LaunchOptions:
    """With the address where machines elsewhere join, for a run that has such.

    Raises: InvalidInput when the page was not told of one: they would be told to join their own loopback.
    """
    if not (options.has_fleet and form.pools_elsewhere):
        return options
    if not settings.join_host:
        pools = ", ".join(form.pools_elsewhere)
        raise InvalidInput(
            f"the machines of {pools} stand elsewhere and would not reach the run, which listens on loopback: start "
            "the page with --join-host ADDRESS, this machine's address that they reach (and with --join-name NAME, if "
            "they reach it under another name), or launch without a fleet service"
        )
    return replace(options, host=settings.join_host, advertise=settings.join_name)
