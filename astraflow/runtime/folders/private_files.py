"""Files that only their owner can read, replaced as a whole."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Writes a file atomically, with access for its owner only."""
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)
