"""Cache directory of AstraFlow: prepared models and other data that can be recreated."""

import os
from pathlib import Path

HOME = "ASTRAFLOW_HOME"
"""Environment variable that overrides the directory."""


def home() -> Path:
    """Returns `$ASTRAFLOW_HOME`, or `~/.cache/astraflow`. Does not create it."""
    chosen = os.environ.get(HOME)
    return Path(chosen) if chosen else Path.home() / ".cache" / "astraflow"
