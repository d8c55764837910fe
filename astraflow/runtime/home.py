"""Where AstraFlow keeps what it may make again: prepared models and other caches."""

import os
from pathlib import Path

HOME = "ASTRAFLOW_HOME"
"""Environment variable that moves it."""


def home() -> Path:
    """`$ASTRAFLOW_HOME`, or `~/.cache/astraflow`. Not created here."""
    chosen = os.environ.get(HOME)
    return Path(chosen) if chosen else Path.home() / ".cache" / "astraflow"
