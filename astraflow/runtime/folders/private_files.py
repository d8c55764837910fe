"""Files that only their owner can read, replaced as a whole."""

import os
import tempfile
from pathlib import Path


def write_private(path: Path, content: str | bytes, *, permissions: int = 0o600, is_durable: bool = False) -> None:
    """Writes a file atomically. Until it has its name, only its owner can read it.

    permissions: of the finished file. is_durable: returns once the content is on the disk. Raises: OSError.
    """
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            os.fchmod(descriptor, permissions)
            file.flush()
            if is_durable:
                os.fsync(descriptor)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
