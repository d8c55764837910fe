"""Levels of detail of recorded history, with their retention."""

from dataclasses import dataclass

from sqlmodel import SQLModel

from web.database.tables import SeriesFiveMinutes, SeriesSecond, SeriesTenSeconds

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Level of detail. A row of a coarse level covers `width_s` seconds from its time on."""

    width_s: int
    retention_s: float
    """Retention before the newest report of the run, seconds: an ended run keeps its history."""
    training_retention_s: float
    """Retention of training metrics, of which there is one value for each step, seconds."""
    node_retention_s: float
    """Retention of the history of single nodes, of which there may be thousands, seconds."""
    table: type[SQLModel]


SECOND_LEVEL = Level(
    width_s=1, retention_s=6 * HOUR_S, training_retention_s=6 * HOUR_S, node_retention_s=0.0, table=SeriesSecond
)
TEN_SECOND_LEVEL = Level(
    width_s=10,
    retention_s=2 * DAY_S,
    training_retention_s=60 * DAY_S,
    node_retention_s=2 * HOUR_S,
    table=SeriesTenSeconds,
)
FIVE_MINUTE_LEVEL = Level(
    width_s=300,
    retention_s=400 * DAY_S,
    training_retention_s=400 * DAY_S,
    node_retention_s=8 * DAY_S,
    table=SeriesFiveMinutes,
)

LEVELS = (SECOND_LEVEL, TEN_SECOND_LEVEL, FIVE_MINUTE_LEVEL)
"""From fine to coarse."""

ROLL_UPS = ((SECOND_LEVEL, TEN_SECOND_LEVEL), (TEN_SECOND_LEVEL, FIVE_MINUTE_LEVEL))
"""Pairs of levels: the first is aggregated into the second."""

MAX_VALUES = frozenset({"version", "steps", "lag", "target", "wait_s", "compute_s", "publish_s"})
"""Values whose maximum a coarse row shows; others show the mean."""
