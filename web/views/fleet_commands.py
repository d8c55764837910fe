"""Commands that start a fleet service and a web service that shows it."""

from web.settings import Settings


def start_command(settings: Settings) -> str:
    """Returns the command that starts a fleet service for this run."""
    return f"astraflow serve fleet fleet.toml --dataflow {settings.dataflow} --port 7070"


def web_command(settings: Settings) -> str:
    """Returns the command that starts the web service with that fleet service."""
    return f"astraflow serve web --dataflow {settings.dataflow} --fleet 127.0.0.1:7070"
