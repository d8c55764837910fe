"""Files of folders that others wrote: nothing outside of the folder is read, nothing blocks, and sizes are bounded."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

_MAX_DEPTH = 64
"""Levels of folders; deeper ones are refused."""
_MAX_ENTRIES = 200_000


class NotContained(OSError):
    """A path below a folder leads out of it, is no regular file or folder, or is too large."""


def contained_bytes(folder: Path, path: str, *, limit: int, is_end: bool = False) -> bytes:
    """Returns the content of a regular file below a folder. Links are followed inside of the folder only, also while
    another process changes them.

    is_end: a larger file gives its last `limit` bytes. Raises: NotContained; FileNotFoundError; IsADirectoryError;
    OSError.
    """
    with ExitStack() as resources:
        descriptor = _opened(folder, path, resources)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(f"{path!r} is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise NotContained(f"{path!r} is no regular file")
        if status.st_size > limit and not is_end:
            raise NotContained(f"{path!r} has {status.st_size} bytes, more than {limit}")
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(max(0, status.st_size - limit))
            return file.read(limit)


def contained_files(folder: Path) -> Iterator[str]:
    """Yields the paths of all files of a folder, sorted, those to which links lead included. Links to folders are not
    followed.

    Raises: NotContained for a link that leads out of the folder or nowhere, for what is neither file, folder nor link,
    and for more than 64 levels or 200,000 entries; OSError.
    """
    root = os.path.realpath(folder)
    pending, entries = [""], 0
    paths: list[str] = []
    while pending:
        inner = pending.pop()
        if inner.count("/") >= _MAX_DEPTH:
            raise NotContained(f"{inner[:100]!r} has more than {_MAX_DEPTH} levels")
        names = [entry.name for entry in Path(root, inner).iterdir()]
        entries += len(names)
        if entries > _MAX_ENTRIES:
            raise NotContained(f"it has more than {_MAX_ENTRIES} entries")
        for name in names:
            path = f"{inner}/{name}" if inner else name
            if stat.S_ISREG(_kind(root, path)):
                paths.append(path)
            elif not Path(root, path).is_symlink():
                pending.append(path)
    yield from sorted(paths)


def _kind(root: str, path: str) -> int:
    """Returns the mode of a regular file or folder, of that to which a link leads. Raises: NotContained."""
    real = os.path.realpath(f"{root}/{path}")
    if not f"{real}/".startswith(f"{root}/"):
        raise NotContained(f"the link {path!r} leads out of the folder, to {real!r}")
    try:
        kind = os.lstat(real).st_mode
    except FileNotFoundError:
        raise NotContained(f"the link {path!r} leads nowhere") from None
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise NotContained(f"{path!r} is neither a file nor a folder")
    return kind


def _opened(folder: Path, path: str, resources: ExitStack) -> int:
    """Opens a path below a folder, part by part without links: those were followed before, in the name alone."""
    root = os.path.realpath(folder)
    real = os.path.realpath(f"{root}/{path}")
    if not f"{real}/".startswith(f"{root}/"):
        raise NotContained(f"{path!r} leads out of the folder, to {real!r}")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    resources.callback(os.close, descriptor)
    for part in Path(real).relative_to(root).parts:
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
        resources.callback(os.close, descriptor)
    return descriptor
