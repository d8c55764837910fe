"""The kill switch as a file: it works when nothing else does."""

from pathlib import Path


class SwitchFile:
    """While the file is there, nothing is launched or retired."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_there(self) -> bool:
        """Looked for anew at each call: `touch` works at once."""
        return self.path.exists()
