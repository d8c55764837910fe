"""`astraflow check export`: verifies the hash in the export of a run.

The hash is that of the file with zeros in its place, so that it covers all that the file shows. Who changes the file on
purpose can replace the hash too: the audit log of the page that made the export has it.
"""

import hashlib
import re
from pathlib import Path

from astraflow.contract.errors import CorruptData, InvalidInput

MAX_BYTES = 64 * 1024 * 1024
_HASH = re.compile(rb'<meta name="astraflow-sha256" content="([0-9a-f]{64})">')


def checked_hash(file: Path) -> str:
    """Returns the hash of an unchanged export. Raises: InvalidInput for another file, CorruptData for a changed one."""
    try:
        content = file.read_bytes() if file.stat().st_size <= MAX_BYTES else b""
    except OSError as problem:
        raise InvalidInput(
            f"cannot read the export {str(file)!r}: {problem.strerror}; check the path", code="export.unreadable"
        ) from None
    match = _HASH.search(content)
    if match is None:
        raise InvalidInput(
            f"cannot check {str(file)!r}: it is no export of a run; give a file of `astraflow view RUN --export FILE`",
            code="export.not_an_export",
        )
    if hashlib.sha256(content.replace(match[1], b"0" * 64)).hexdigest().encode() != match[1]:
        raise CorruptData(
            f"cannot trust the export {str(file)!r}: it was changed after it was written; export the run again",
            code="export.changed",
        )
    return match[1].decode()
