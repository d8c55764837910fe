"""The fleet in words."""

from web.settings import Settings


def start_command(settings: Settings) -> str:
    """What to type for a page that was told of no fleet service: it starts one over the same run."""
    return f"astraflow serve fleet fleet.toml --dataflow {settings.dataflow} --port 7070"


def show_command(settings: Settings) -> str:
    """What to type then, so that this page shows it."""
    return f"astraflow serve web --dataflow {settings.dataflow} --fleet 127.0.0.1:7070"
