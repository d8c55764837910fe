"""Folders of programs: nothing here follows a link, recurses, or depends on the length of a path."""

import errno
import os
import time
from contextlib import suppress

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_ENTRIES = 65_536
"""Entries of a working directory, as many as the file system of a namespace has."""
_MAX_DEPTH = 64
"""Folders in each other while a program runs at a level that measures its working directory."""
_ATTEMPTS = 10
"""Attempts in a folder that programs may change at the same time."""


def open_folder(path: str, *, parent: int | None = None) -> int:
    """Returns a descriptor of a folder, also of one without permissions, which it then gets. Raises: OSError."""
    try:
        return os.open(path, _FOLDER, dir_fd=parent)
    except PermissionError:
        handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", _FOLDER, dir_fd=handle)
    finally:
        os.close(handle)


def remove(path: str, *, parent: int | None = None) -> bool:
    """Removes a folder whose programs have ended, with all that is in it; returns whether nothing of it is left.

    Raises nothing.
    """
    for _ in range(_ATTEMPTS):
        if not empty(path, parent=parent):
            return not os.access(path, os.F_OK, dir_fd=parent, follow_symlinks=False)
        try:
            os.rmdir(path, dir_fd=parent)
        except OSError as problem:
            if problem.errno != errno.ENOTEMPTY:  # a program that is being ended has added an entry
                return False
        else:
            return True
    return False


def empty(path: str, *, parent: int | None = None, limit_s: float = float("inf")) -> bool:
    """Removes what is in a folder whose programs have ended; returns whether nothing is left. Raises nothing.

    A folder inside of another moves to the top before its parent is removed, so that no depth costs memory,
    descriptors or the length of a path.
    """
    deadline = time.monotonic() + limit_s
    try:
        top = open_folder(path, parent=parent)
    except OSError:
        return False
    try:
        os.fchmod(top, 0o700)
        return _is_emptied(top, deadline)
    except OSError:
        return False
    finally:
        os.close(top)


def write(folder: str, path: str, content: bytes) -> None:
    """Writes a file below a folder that programs may change meanwhile, in place of what has the names of its path.

    path: relative, without `..`. Raises: OSError.
    """
    *folders, name = [part for part in path.split("/") if part not in ("", ".")]
    for attempt in range(_ATTEMPTS):
        try:
            _write(folder, folders, name, content)
        except (FileExistsError, FileNotFoundError):  # a program changed the folder at the same time
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def exceeds(folder: str, *, size_bytes: int) -> bool:
    """Returns whether a folder that programs may change has more than so many bytes, entries, or folders in each
    other. Raises: OSError."""
    used_bytes = count = 0
    levels: list[_Level] = [_Level(folder)]
    try:
        while levels:
            entry = next(levels[-1].entries, None)
            if entry is None:
                levels.pop().close()
                continue
            count += 1
            with suppress(FileNotFoundError, NotADirectoryError):  # removed or replaced meanwhile
                used_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    levels.append(_Level(entry.name, parent=levels[-1].folder))
            if used_bytes > size_bytes or count > _MAX_ENTRIES or len(levels) > _MAX_DEPTH:
                return True
        return False
    finally:
        for level in levels:
            level.close()


class _Level:
    """Folder whose entries are being read."""

    def __init__(self, path: str, *, parent: int | None = None) -> None:
        self.folder = open_folder(path, parent=parent)
        self.entries = os.scandir(self.folder)

    def close(self) -> None:
        self.entries.close()
        os.close(self.folder)


def _is_emptied(top: int, deadline: float) -> bool:
    """Removes the entries of a folder; returns whether all of them could be removed before the deadline."""
    names, count, is_emptied = _without_files(top), 0, True
    prefix = f".removed-{os.urandom(8).hex()}-"
    while names:
        if time.monotonic() > deadline:
            return False
        name = names.pop()
        try:
            lifted = _lifted(name, top, prefix, count)
            names += lifted
            count += len(lifted)
            os.rmdir(name, dir_fd=top)
        except OSError:
            is_emptied = False
    return is_emptied


def _lifted(name: str, top: int, prefix: str, count: int) -> list[str]:
    """Empties an entry of a folder, which receives the folders in it, numbered from `count` on. Returns their names.

    Raises: OSError.
    """
    folder = open_folder(name, parent=top)
    lifted: list[str] = []
    try:
        os.fchmod(folder, 0o700)
        for child in _without_files(folder):
            new_name = f"{prefix}{count + len(lifted)}"
            try:
                os.rename(child, new_name, src_dir_fd=folder, dst_dir_fd=top)
            except PermissionError:  # a folder without permissions cannot change its entry `..`
                _permit(child, folder)
                os.rename(child, new_name, src_dir_fd=folder, dst_dir_fd=top)
            lifted.append(new_name)
    finally:
        os.close(folder)
    return lifted


def _permit(name: str, parent: int) -> None:
    folder = open_folder(name, parent=parent)
    os.fchmod(folder, 0o700)
    os.close(folder)


def _without_files(folder: int) -> list[str]:
    """Removes what is no folder; returns the names of the folders. Raises: OSError."""
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return names


def _write(folder: str, folders: list[str], name: str, content: bytes) -> None:
    parent = open_folder(folder)
    try:
        for part in folders:
            child = _entered(part, parent)
            os.close(parent)
            parent = child
        _discard(name, parent)
        with open(os.open(name, _NEW_FILE, 0o666, dir_fd=parent), "wb") as file:
            file.write(content)
    finally:
        os.close(parent)


def _entered(name: str, parent: int) -> int:
    """Returns a descriptor of a folder in another one, which replaces a file or link of its name."""
    try:
        return open_folder(name, parent=parent)
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    os.mkdir(name, 0o777, dir_fd=parent)
    return open_folder(name, parent=parent)


def _discard(name: str, parent: int) -> None:
    """Removes what has a name in a folder: writing into a link, a pipe or a file that others hold is no new file."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if not remove(name, parent=parent):
            raise
