"""The levels of detail at which numbers are kept, and for how long."""

from dataclasses import dataclass

from sqlmodel import SQLModel

from web.tables import SeriesFiveMinutes, SeriesSecond, SeriesTenSeconds

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level. A row of all but the finest stands for the `width_s` seconds from its time on."""

    width_s: int
    kept_s: float
    """Before the newest report of the run: a run that ended keeps what it had then."""
    nodes_kept_s: float
    """The same for numbers of single nodes, of which there may be thousands."""
    table: type[SQLModel]


SECONDS = Level(width_s=1, kept_s=6 * HOUR_S, nodes_kept_s=0.0, table=SeriesSecond)
TENS = Level(width_s=10, kept_s=2 * DAY_S, nodes_kept_s=2 * HOUR_S, table=SeriesTenSeconds)
FIVES = Level(width_s=300, kept_s=400 * DAY_S, nodes_kept_s=8 * DAY_S, table=SeriesFiveMinutes)

LEVELS = (SECONDS, TENS, FIVES)
"""From fine to coarse."""

ROLLS = ((SECONDS, TENS), (TENS, FIVES))
"""What is rolled up into what."""

HIGHEST = frozenset({"version", "steps", "lag", "target", "wait_s", "compute_s", "publish_s"})
"""Numbers of which a coarse row shows the highest; of all others it shows the mean."""
