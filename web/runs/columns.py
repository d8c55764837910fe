"""Further columns of the list of runs: any setting of their recipes and the last value of any metric, by user."""

from collections.abc import Iterable, Sequence
from typing import Any

from web.components import formats
from web.database.db import Database
from web.database.preferences import preferred_names
from web.requests.recipe_settings import setting_text
from web.runs.list_queries import METRIC, SETTING, RunEntry, column_value

PREFERENCE = "run_columns"
MAX_COLUMNS = 12


def available_columns(entries: Iterable[RunEntry]) -> tuple[tuple[str, Sequence[str]], ...]:
    """Returns the keys that any run has, by kind: settings of recipes and metrics."""
    listed = list(entries)
    settings = sorted({f"{SETTING}{key}" for entry in listed for key in entry.settings})
    metrics = sorted({f"{METRIC}{name}" for entry in listed for name in entry.metrics})
    return ("Metrics, last value", metrics), ("Settings", settings)


async def shown_columns(database: Database, user_id: int) -> tuple[str, ...]:
    """Returns the further columns of a user, in their order."""
    keys = await database.read(lambda session: preferred_names(session, user_id, PREFERENCE))
    return tuple(key for key in keys if key.startswith((SETTING, METRIC)))[:MAX_COLUMNS]


def column_label(key: str) -> str:
    """Returns the heading of a column.

    >>> column_label("setting:policies.solver.optimizer.learning_rate"), column_label("metric:kl")
    ('learning_rate', 'kl')
    """
    return key.partition(":")[2].rpartition(".")[2]


def cell_text(entry: RunEntry, key: str) -> str:
    """Returns the text of a cell; a dash without a value."""
    value: Any = column_value(entry, key)
    if value is None:
        return formats.MISSING
    return formats.figure(value) if isinstance(value, float) else formats.shortened(setting_text(value), at_most=40)
