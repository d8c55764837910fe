"""Recipes and their settings as they are shown before a launch: cards, forms, prices and preflight checks.

The program `astraflow recipes --json` writes them, and the web process reads them.
"""

from dataclasses import dataclass
from typing import Literal

from astraflow.contract.fleet.preflight import PreflightCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeNeeds:
    """Hardware that a recipe needs on the machine that starts it, with the nodes that it starts itself."""

    gpus: int = 0
    """GPUs of its trainers and engines. Count; 0 for a recipe that runs on CPUs."""
    gpu_memory_gb: float = 0.0
    """Memory of each GPU. Gigabytes; 0 if any will do."""
    memory_gb: float = 0.0
    """Main memory. Gigabytes."""
    disk_gb: float = 0.0
    """Disk space of the run. Gigabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeObstacle:
    """Reason why this machine cannot run a recipe as it is."""

    cause: str
    """Cause, in a clause: `it needs 8 GPUs with 80 GB each; this machine has none`."""
    remedy: str
    """Suggested action: `launch it on a machine with 8 GPUs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeParts:
    """Parts of a recipe, by name."""

    prompts: tuple[str, ...] = ()
    """Kinds of the data sets of its flows."""
    policies: tuple[str, ...] = ()
    """Names of its policies."""
    workflow: str = ""
    """Kind of the first flow's workflow."""
    world: str = ""
    """Kind of the environment, or the kinds of the tools, that the first flow's policies act in; empty for none."""
    reward: str = ""
    """Kind of the first flow's reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCard:
    """Recipe that can be launched, in the list of recipes."""

    name: str
    """Name for a launch."""
    name_or_path: str
    """Argument that launches it: its name, or the file of a declared recipe."""
    summary: str = ""
    """Its task and method, in a sentence."""
    is_own: bool = False
    """True for a recipe of the user's own folders."""
    simulated: tuple[str, ...] = ()
    """Kinds of its simulated plugins."""
    problem: str = ""
    """Cause why it cannot be launched at all; empty when it can."""
    shows: str = ""
    """Purpose of a run as a sentence; empty if its file has none."""
    minutes: float | None = None
    """Minutes to the stop condition; None if they were not measured."""
    measured_on: str = ""
    """Machine on which the minutes were measured."""
    needs: RecipeNeeds = RecipeNeeds()
    """Hardware that it needs."""
    parts: RecipeParts = RecipeParts()
    """Its parts, by name."""
    obstacles: tuple[RecipeObstacle, ...] = ()
    """Reasons why this machine cannot run it as it is; empty if it can, as far as is known."""


FieldKind = Literal["integer", "number", "text", "boolean", "plugins"]
"""Kind of a field of a form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """Setting of a recipe in the form."""

    key: str
    """Key of the setting, as in `--set`."""
    title: str
    """Label of the setting."""
    owner: str
    """Policy, flow or pool of the setting; empty for the whole run."""
    kind: FieldKind
    """Kind of its values."""
    value: bool | int | float | str | None
    """Value in effect; None for a setting without one."""
    description: str
    """Meaning of the setting."""
    minimum: float | None
    """Smallest value; None without a bound."""
    maximum: float | None
    """Largest value; None without a bound."""
    choices: tuple[str, ...]
    """Values to choose from; empty for any."""
    is_optional: bool
    """True if the value may be empty."""
    is_basic: bool
    """True if most launches change it: it is in the short form."""
    settable_by: str
    """Lowest role that may override it from the page: `agent`, `operator` or `admin`; `data_location` for a path
    below a data location; `recipe` for none."""
    entries: tuple[str, ...] = ()
    """For a list of plugins: each in TOML with its options; `value` has their kinds, separated by commas."""

    @property
    def text(self) -> str:
        """Value as text in the form."""
        if self.value is None:
            return ""
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)

    @property
    def rows(self) -> tuple[str, ...]:
        """Kinds of a list of plugins, in order, with an empty one to add another."""
        return (*(kind for kind in self.text.split(", ") if kind), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormProblem:
    """Problem of an override or a setting."""

    key: str
    """Key of the setting; empty for a problem of the whole recipe."""
    message: str
    """Cause, and what to do."""
    line: int | None = None
    """Line of an edited text, from 1; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCheck:
    """Result of one check of the machine that launches a recipe."""

    name: str
    """Subject of the check: `Memory`."""
    is_ok: bool
    """True if the check passed."""
    message: str
    """Result in a clause: `3.1 GiB free; the processes need at least 1.2 GiB`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEstimate:
    """Pool of a recipe's fleet: node counts, provider and price."""

    name: str
    """Name of the pool."""
    provider: str
    """Name of its provider."""
    kind: str
    """Kind of the provider: `ec2`."""
    is_remote: bool
    """True if its nodes run on other machines, which have to reach this one over the network."""
    initial_nodes: int
    """Nodes at the start. Count."""
    min_nodes: int
    """Fewest nodes. Count."""
    max_nodes: int
    """Most nodes. Count."""
    usd_per_hour_max: float | None
    """Budget of the pool. US dollars per hour; None for no limit."""
    usd_per_day_max: float | None
    """Budget of the pool. US dollars per day in UTC; None for no limit."""
    node_usd_per_hour: float | None
    """Price of a node. US dollars per hour; None while unknown."""
    price_source: str
    """Source of the price; empty while unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCheck(PreflightCheck):
    """Preflight check of a provider of a recipe's fleet."""

    provider: str
    """Name of the provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipePreflight:
    """Preflight check of the providers of a recipe's fleet. Nothing is started."""

    pools: tuple[PoolEstimate, ...] = ()
    """Pools with prices."""
    checks: tuple[ProviderCheck, ...] = ()
    """Checks of the providers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeForm:
    """Recipe with overrides applied."""

    name: str
    """Name of the recipe, or its file."""
    summary: str
    """Its task and method, in a sentence."""
    simulated: tuple[str, ...]
    """Kinds of its simulated plugins."""
    fields: tuple[FormField, ...]
    """Settings with their values."""
    problems: tuple[FormProblem, ...]
    """Problems of the settings."""
    refusals: tuple[FormProblem, ...]
    """Overrides that the role may not make; they are also among the problems. With any, no override is applied."""
    checks: tuple[FormCheck, ...]
    """Checks of this machine."""
    overrides: tuple[str, ...]
    """Overrides as in `--set`, also those that an edited text makes."""
    needs_admin: bool
    """True if an override changes a setting that only an admin may override."""
    toml: str
    """Overrides as a recipe file that extends this recipe."""
    text: str
    """The whole recipe with the overrides as TOML, as its files set it; an edited text stays as it is."""
    usd_per_hour: float
    """Cost of the nodes that the run starts without a fleet. US dollars per hour."""
    has_fleet: bool
    """True if the recipe defines providers or pools and needs a fleet service."""
    pools: tuple[PoolEstimate, ...]
    """Pools of the fleet; empty without a fleet. Prices are requested separately."""
    usd_per_hour_max: float | None
    """Budget of the fleet. US dollars per hour; None for no limit."""
    usd_per_day_max: float | None
    """Budget of the fleet. US dollars per day in UTC; None for no limit."""

    @property
    def is_unreadable(self) -> bool:
        """True for an edited text that is no TOML, whose settings are unknown."""
        return any(not problem.key and problem.line is not None for problem in self.problems)

    @property
    def trained(self) -> tuple[str, ...]:
        """Policies that are trained."""
        keys = (field.key.split(".") for field in self.fields if field.value is True)
        return tuple(key[1] for key in keys if key[0] == "policies" and key[2:] == ["is_trained"])

    @property
    def pools_elsewhere(self) -> tuple[str, ...]:
        """Pools whose instances run on other machines and have to reach this one."""
        return tuple(pool.name for pool in self.pools if pool.is_remote)
