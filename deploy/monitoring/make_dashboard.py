"""Writes the Grafana dashboard of a run from dashboard.toml: `python -m deploy.monitoring.make_dashboard`.

The result is JSON as Grafana exports it, for import or provisioning. Every query is limited to the selected runs by
`instance`, the address that Prometheus scrapes.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

SOURCE = Path(__file__).parent / "dashboard.toml"
PATH = Path(__file__).parent / "dashboard.json"

_SCHEMA_VERSION = 39
"""Version of the dashboard's format: Grafana 10.4 writes it, later releases migrate it when they read it."""

_COLUMNS, _CHARTS_ABREAST, _HEIGHT, _STAT_HEIGHT = 24, 3, 8, 4
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(BaseModel):
    """A chart; with `colours`, the latest number only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    description: str
    unit: str
    """Name of the unit in Grafana: `s`, `bytes`, `percentunit`, `short`, `none`."""
    queries: tuple[tuple[str, str], ...]
    """Legend and query of each set of series."""
    is_stacked: bool = False
    colours: tuple[tuple[float, str], ...] = ()
    """Lowest value of each colour after green."""

    @property
    def is_stat(self) -> bool:
        """Whether the panel shows the latest number only."""
        return bool(self.colours)


class Row(BaseModel):
    """Panels of one topic: all numbers, or all charts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    panels: tuple[Panel, ...]


def rows() -> list[Row]:
    """Returns the rows that dashboard.toml declares."""
    return [Row.model_validate(row) for row in tomllib.loads(SOURCE.read_text())["rows"]]


def dashboard() -> dict[str, Any]:
    """Returns the dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows():
        panels.append(_row(row.title, top=top))
        top += 1
        has_stats = row.panels[0].is_stat
        columns, height = (len(row.panels), _STAT_HEIGHT) if has_stats else (_CHARTS_ABREAST, _HEIGHT)
        width = _COLUMNS // columns
        for index, panel in enumerate(row.panels):
            down, across = divmod(index, columns)
            grid = {"h": height, "w": width, "x": across * width, "y": top + down * height}
            panels.append(_panel(panel, grid))
        top += height * -(-len(row.panels) // columns)
    for number, panel_json in enumerate(panels, start=1):
        panel_json["id"] = number
    return {
        "uid": "astraflow-run",
        "title": "AstraFlow run",
        "tags": ["astraflow"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    query = "label_values(astraflow_run_info, instance)"
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1},
        {
            "name": "instance",
            "label": "Run",
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": query, "refId": "instance"},
            "definition": query,
            "refresh": 2,
            "includeAll": True,
            "multi": True,
        },
    ]


def _row(title: str, *, top: int) -> dict[str, Any]:
    grid = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
    return {"type": "row", "title": title, "collapsed": False, "gridPos": grid, "panels": []}


def _panel(panel: Panel, grid: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.is_stat:
        steps = [{"color": "green", "value": None}, *({"color": c, "value": v} for v, c in panel.colours)]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}}
        options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background"}
    else:
        stacking = {"mode": "normal" if panel.is_stacked else "none", "group": "A"}
        defaults |= {"custom": {"fillOpacity": 20 if panel.is_stacked else 0, "stacking": stacking}}
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": _selected(query),
                "legendFormat": legend,
            }
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }


def _selected(query: str) -> str:
    """Returns the query for the selected runs.

    >>> _selected('rate(a_total$[5m]) / b$state="ready"}')
    'rate(a_total{instance=~"$instance"}[5m]) / b{instance=~"$instance", state="ready"}'
    """
    selection = 'instance=~"$instance"'
    parts = query.split("$")
    joined = parts[0]
    for part in parts[1:]:
        has_labels = part[:1].isalpha()
        joined += f"{{{selection}{', ' if has_labels else '}'}{part}"
    return joined


if __name__ == "__main__":
    PATH.write_text(json.dumps(dashboard(), indent=1) + "\n")
