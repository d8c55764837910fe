"""What is sent to and answered by `/api/v1/launches`."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from web.routes.api.providers import CheckAnswer
from web.routes.api.terms import NAME, Body, Filled, Reason

MOST_SETTINGS = 200
LARGEST_LIMIT_S = 1e7

StateName = Literal["starting", "running", "ended"]
KEY = r"^[A-Za-z0-9_.\-]{1,200}$"
SettingKey = Annotated[str, StringConstraints(pattern=KEY)]
SettingText = Annotated[str, StringConstraints(max_length=400, pattern=r"^[^\x00-\x1f\x7f]*$")]
Setting = bool | int | Annotated[float, Field(allow_inf_nan=False)] | SettingText | None

RecipeName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=NAME,
        description="One that comes with AstraFlow (`astraflow recipes`), or of the page's own.",
    ),
]
EarlierRun = Annotated[
    str, Field(min_length=1, max_length=128, pattern=NAME, description="A run that was launched from here.")
]
Unused = Annotated[
    str, Field(max_length=2000, description="Not needed and not kept: the same body can be sent to launch.")
]

_EXAMPLE: dict[str, Any] = {
    "recipe": "smoke",
    "set": {"stop.steps": 200},
    "ends_by_itself": True,
    "reason": "a first look",
}
_CLONE: dict[str, Any] = {"of": "smoke-20260101-000000-0000", "set": {"seed": 2}, "reason": "another seed"}


class Asked(Body):
    """How a run is to differ."""

    set: dict[SettingKey, Setting] = Field(
        default_factory=dict,
        max_length=MOST_SETTINGS,
        description="Settings that differ, each by its key.",
        json_schema_extra={"propertyNames": {"pattern": KEY}},
    )
    fleet: bool | None = Field(
        None,
        description="A fleet service starts its nodes and sizes their pools. Left out: as the recipe asks, or as the "
        "earlier run was launched.",
    )
    ends_by_itself: bool | None = Field(
        None, description="It ends when it has learned, or may go no further. Left out: yes, or as the earlier run."
    )
    limit_s: float | None = Field(
        None,
        ge=1,
        le=LARGEST_LIMIT_S,
        allow_inf_nan=False,
        description="It ends after that many seconds either way. Left out: never, or as the earlier run; null: never.",
    )


class LaunchAsked(Asked):
    """A run of a recipe."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    recipe: RecipeName
    reason: Reason


class CloneAsked(Asked):
    """A run with the settings of an earlier one."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CLONE]})

    of: EarlierRun
    reason: Reason


class LaunchPreviewed(Asked):
    """A run of a recipe, as it would be launched."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    recipe: RecipeName
    reason: Unused = ""


class ClonePreviewed(Asked):
    """A run with the settings of an earlier one, as it would be launched."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CLONE]})

    of: EarlierRun
    reason: Unused = ""


class LaunchAnswer(Filled):
    """A run that was launched from here."""

    name: str
    recipe: str
    state: StateName
    actor: str = Field(description="Who launched it.")
    launched_at: float = Field(description="Unix seconds.")
    last_word: str = Field(description="How it ended; empty while it goes on.")
    folder: str
    fleet: bool
    ends_by_itself: bool
    limit_s: float | None
    can_resume: bool
    logs: list[str] = Field(description="Its processes that have a log.")


class LaunchList(Filled):
    """A page of launched runs, newest first."""

    items: list[LaunchAnswer]
    total: int
    page: int
    pages: int


class LogAnswer(Filled):
    """A stretch of a log."""

    program: str
    text: str
    end: int = Field(description="Where it ends: `after` of the next request.")


class ProblemAnswer(Filled):
    """Something wrong with the settings."""

    key: str = Field(description="The setting; empty for none in particular.")
    message: str


class LookedAt(Filled):
    """Something of this machine that was looked at."""

    what: str = Field(examples=["Memory"])
    is_good: bool
    message: str = Field(examples=["3.1 GiB are free; its processes take 1.2 GiB or more"])


class PoolOffered(Filled):
    """A pool of machines that it would have."""

    name: str
    provider: str
    kind: str = Field(description="Of the provider.", examples=["ec2"])
    is_elsewhere: bool = Field(description="Its machines are others than this one, and have to reach it.")
    first_nodes: int = Field(description="It begins with so many.")
    min_nodes: int
    max_nodes: int
    usd_per_hour_max: float | None
    usd_per_day_max: float | None
    node_usd_per_hour: float | None = Field(description="null as long as nobody has said.")
    price_source: str = Field(description="Who has said it.", examples=["the provider"])


class ProviderCheck(CheckAnswer):
    """One thing that a provider was asked."""

    provider: str


class RequestAnswer(Filled):
    """A request of this API."""

    method: Literal["POST"]
    address: str = Field(examples=["/api/v1/launches"])
    body: dict[str, Any] = Field(description="With a reason to be filled in.", examples=[_EXAMPLE])


class PreviewAnswer(Filled):
    """What would come of a launch."""

    recipe: str = Field(description="Empty for an earlier run's.")
    of: str = Field(description="The earlier run; empty for a recipe.", examples=[""])
    is_ready: bool = Field(description="It can be launched as it is.")
    problem: str = Field(description="What is wrong besides the settings; empty when nothing is.")
    problems: list[ProblemAnswer] = Field(description="What is wrong with the settings.", examples=[[]])
    checks: list[LookedAt] = Field(
        description="Of this machine: disk, memory, ports. None keeps it from being launched."
    )
    machines: str = Field(
        description="Where its nodes come from, in a sentence.", examples=["processes of this machine"]
    )
    cost: str = Field(description="What its nodes cost, in a sentence.", examples=["nothing: no node has a price"])
    pools: list[PoolOffered] = Field(description="With prices; none when its nodes are processes of this machine.")
    usd_per_hour: float = Field(description="Of nodes that the run starts itself.")
    usd_per_hour_max: float | None = Field(description="The fleet's budget; null for unbounded.")
    usd_per_day_max: float | None
    provider_checks: list[ProviderCheck] = Field(description="What its providers said; none of it was started.")
    provider_problem: str = Field(description="Why they could not be asked; empty when they were.", examples=[""])
    toml: str = Field(description="The recipe as it would be run.", examples=['name = "smoke"'])
    command: str = Field(
        description="The same on the command line.", examples=["astraflow run smoke --headless --set stop.steps=200"]
    )
    request: RequestAnswer = Field(description="The same over this API.")
    fleet: bool
    ends_by_itself: bool
    limit_s: float | None
