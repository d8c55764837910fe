"""The kill switch as a file, which works without any service."""

from pathlib import Path


class KillSwitchFile:
    """While the file exists, no instance is launched or retired."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Returns whether the file exists, checked at each call, so that `touch` takes effect at once."""
        return self.path.exists()
