"""What the maintainer is told: which model, how far it may go, what it may use, whom it tells."""

from typing import Any

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.maintenance import MaintainerMode
from astraflow.runtime.config import Config
from maintainer.llm.models import models


class WakeBudget(Config):
    """What one wake may use. What is over ends the wake, and is escalated."""

    tool_calls: int = Field(default=20, ge=1)
    """Of all tools together."""
    tokens: int = Field(default=40_000, ge=1)
    """In and out, cached ones included."""
    duration_s: float = Field(default=120.0, gt=0)
    """Of the wake."""
    usd: float = Field(default=0.5, gt=0)
    """US dollars, by the model's prices."""


class DayBudget(Config):
    """What a day in UTC may use. What is over lets it sleep until the next, and is escalated."""

    wakes: int = Field(default=200, ge=1)
    """Those that ask a model."""
    tool_calls: int = Field(default=1000, ge=1)
    """Of all tools together."""
    tokens: int = Field(default=1_000_000, ge=1)
    """In and out, cached ones included."""
    duration_s: float = Field(default=7200.0, gt=0)
    """Of all wakes together."""
    usd: float = Field(default=5.0, gt=0)
    """US dollars, by the model's prices."""


class WatchConfig(Config):
    """When it wakes."""

    look_s: float = Field(default=600.0, gt=0)
    """Without an event it looks this often; a model is asked only when something is the matter."""
    observe_s: float = Field(default=5.0, gt=0)
    """Reports and the journal are read this often; that costs no tokens."""
    rest_s: float = Field(default=60.0, ge=0)
    """Between two wakes; what happens meanwhile is told at the next."""
    band_ticks: int = Field(default=2, ge=1)
    """A pool outside the rule's band for more ticks of the rule than this is an event."""
    launch_failures: int = Field(default=2, ge=1)
    """So many launches of a pool that failed within `window_s` are an event."""
    lost_share: float = Field(default=0.2, gt=0, le=1)
    """This share of a pool's nodes (and two at least) lost within `window_s` is a preemption wave."""
    window_s: float = Field(default=900.0, gt=0)
    """How long failures and losses are remembered."""
    straggler_speed: float = Field(default=0.5, gt=0, lt=1)
    """A node slower than this share of what nodes of its hardware do in the pool where they do best"""
    straggler_s: float = Field(default=300.0, gt=0)
    """for so long is an event."""
    smoothing_s: float = Field(default=60.0, gt=0)
    """Speeds of nodes are averaged over about so long: ten seconds hold few episodes."""
    blind_s: float = Field(default=120.0, gt=0)
    """No report for so long is an event."""


class NotifyConfig(Config):
    """Whom it tells. The address is a secret: it comes from a variable or a file, and is shown nowhere."""

    kind: str = "generic"
    """generic: a JSON object; slack: what Slack's incoming webhooks take."""
    url_variable: str = "ASTRAFLOW_WEBHOOK_URL"
    """Environment variable with the webhook's address; nobody is told when it is empty and there is no file."""
    url_file: str = ""
    """File with the address instead."""
    tries: int = Field(default=5, ge=1, le=20)
    """Of one message, with pauses that double from one second."""
    queue: int = Field(default=100, ge=1)
    """Messages that wait; of more, the oldest is given up, and counted."""
    digest_hour: int | None = Field(default=7, ge=0, le=23)
    """Hour in UTC of the daily digest; none when absent."""

    @field_validator("kind")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in ("generic", "slack"):
            raise ValueError(f"{value!r} is no kind of webhook: generic, slack")
        return value


class StandingConfig(Config):
    """Where it is written how good the model is."""

    leaderboard: str = "leaderboard.json"
    """What `astraflow maintainer eval` wrote; its status shows the line of the model. Empty: nothing is looked at."""


class MaintainerConfig(Config):
    """The maintainer of one run."""

    name: str = "maintainer"
    """How the journal names it."""
    mode: MaintainerMode = MaintainerMode.PROPOSE
    """off, shadow, propose or auto: at first; once people have set one, theirs counts."""
    model: dict[str, Any] = Field(default={"kind": "scripted"})
    """`kind` (messages_api, chat_completions, scripted) and its options."""
    max_output_tokens: int = Field(default=2000, ge=64)
    """Of one turn."""
    shows_names: bool = False
    """Whether pools, providers, types and regions go to the model by their names; nodes never do."""
    wake: WakeBudget = WakeBudget()
    """Budget of a wake."""
    day: DayBudget = DayBudget()
    """Budget of a day."""
    watch: WatchConfig = WatchConfig()
    """When it wakes."""
    notify: NotifyConfig = NotifyConfig()
    """Whom it tells."""
    standing: StandingConfig = StandingConfig()
    """How good it is."""

    @field_validator("model")
    @classmethod
    def _is_a_model(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            models.check(value)
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None
        return value
