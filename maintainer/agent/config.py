"""Configuration of the maintainer: model, mode, budgets, signals and notifications."""

from typing import Any

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.runtime.config.base import Config
from maintainer.agent.llm.interface import models


class WakeBudget(Config):
    """Budget of one wake. An exceeded budget ends the wake and is escalated."""

    tool_calls: int = Field(default=20, ge=1)
    """Calls of all tools together. Count."""
    tokens: int = Field(default=40_000, ge=1)
    """Input and output tokens, cached ones included. Count."""
    duration_s: float = Field(default=120.0, gt=0)
    """Duration of the wake, seconds."""
    usd: float = Field(default=0.5, gt=0)
    """US dollars, by the model's prices."""


class DayBudget(Config):
    """Budget of one day (UTC). An exceeded budget pauses the maintainer until midnight UTC and is escalated."""

    wakes: int = Field(default=200, ge=1)
    """Wakes that call a model. Count."""
    tool_calls: int = Field(default=1000, ge=1)
    """Calls of all tools together. Count."""
    tokens: int = Field(default=1_000_000, ge=1)
    """Input and output tokens, cached ones included. Count."""
    duration_s: float = Field(default=7200.0, gt=0)
    """Duration of all wakes together, seconds."""
    usd: float = Field(default=5.0, gt=0)
    """US dollars, by the model's prices."""


class WatchConfig(Config):
    """Intervals and thresholds of the signals that wake the maintainer."""

    check_interval_s: float = Field(default=600.0, gt=0)
    """Interval between checks without a new signal, seconds; a model is called only while a signal is active."""
    observe_interval_s: float = Field(default=5.0, gt=0)
    """Interval at which reports and the journal are read, seconds; costs no tokens."""
    wake_pause_s: float = Field(default=60.0, ge=0)
    """Minimum pause between two wakes, seconds; signals raised meanwhile are sent at the next wake."""
    band_ticks: int = Field(default=2, ge=1)
    """Ticks of the rule that a pool may be outside the rule's band before a signal is raised."""
    launch_failures: int = Field(default=2, ge=1)
    """Failed launches of a pool within `window_s` that raise a signal."""
    preemption_share: float = Field(default=0.2, gt=0, le=1)
    """Share of a pool's nodes (two at least) lost within `window_s` that raises a burst of preemptions."""
    window_s: float = Field(default=900.0, gt=0)
    """Period for which failures and losses are counted, seconds."""
    straggler_speed: float = Field(default=0.5, gt=0, lt=1)
    """Threshold of a straggler: share of the median speed of the same hardware in the pool where it is fastest."""
    straggler_s: float = Field(default=300.0, gt=0)
    """Time below `straggler_speed` that raises a signal, seconds."""
    smoothing_s: float = Field(default=60.0, gt=0)
    """Time constant for averaging node speeds, seconds: ten seconds hold few episodes."""
    no_report_s: float = Field(default=120.0, gt=0)
    """Time without a new report that raises a signal, seconds."""


class NotifyConfig(Config):
    """Webhook for notifications. Its URL is a secret: it comes from a variable or a file and is shown nowhere."""

    kind: str = "generic"
    """generic: a JSON object; slack: the format of Slack's incoming webhooks."""
    url_variable: str = "ASTRAFLOW_WEBHOOK_URL"
    """Environment variable with the webhook URL; without it and `url_file` no notices are sent."""
    url_file: str = ""
    """File with the webhook URL; replaces the variable."""
    keep_hours: float = Field(default=24.0, gt=0, le=168)
    """Hours for which a notice that has not arrived is sent again. Pauses double from a second to a minute, unless the
    receiver asks for others with Retry-After."""
    max_queued: int = Field(default=100, ge=1)
    """Queued notices; beyond it the oldest is dropped and counted."""
    digest_hour: int | None = Field(default=7, ge=0, le=23)
    """Hour (UTC) of the daily digest; None: no digest."""

    @field_validator("kind")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in ("generic", "slack"):
            raise ValueError(f"cannot use the webhook kind {value!r}: unknown; use generic or slack")
        return value


class ScorecardConfig(Config):
    """Source of the model's evaluation score."""

    leaderboard: str = "leaderboard.json"
    """File written by `astraflow maintainer eval`; the status shows the model's row. Empty: no score is shown."""


class MaintainerConfig(Config):
    """The maintainer of one run."""

    name: str = "maintainer"
    """Name of the maintainer in the journal."""
    mode: MaintainerMode = MaintainerMode.PROPOSE
    """Initial mode: off, shadow, propose or auto. A mode set by a person takes precedence."""
    model: dict[str, Any] = Field(default={"kind": "scripted"})
    """`kind` (messages_api, chat_completions, scripted) and its options."""
    max_output_tokens: int = Field(default=2000, ge=64)
    """Output tokens of one turn. Count."""
    shows_names: bool = False
    """Sends names of pools, providers, types and regions to the model; node names are always hashed."""
    wake: WakeBudget = WakeBudget()
    """Budget of one wake."""
    day: DayBudget = DayBudget()
    """Budget of one day."""
    watch: WatchConfig = WatchConfig()
    """Signals and intervals."""
    notify: NotifyConfig = NotifyConfig()
    """Notifications."""
    scorecard: ScorecardConfig = ScorecardConfig()
    """Scorecard."""

    @field_validator("model")
    @classmethod
    def _check_model(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            models.check(value)
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None
        return value
