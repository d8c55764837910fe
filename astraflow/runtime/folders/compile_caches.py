"""Folders of compiled code, which a user who can write to them can replace: below the cache folder of this user alone.

Libraries put theirs by default in folders such as /tmp/torchinductor_USER, which another user can create first.
"""

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from astraflow.runtime.folders.run_folders import home
from astraflow.runtime.logs import get_logger

log = get_logger()

FOLDERS: Mapping[str, str] = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cute",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "TILELANG_CACHE_DIR": "tilelang",
    "VLLM_CACHE_ROOT": "vllm",
}
"""Folder of each library that compiles, by the environment variable that it reads."""
USER_CACHE = "XDG_CACHE_HOME"
"""Cache folder of the user, where numba and others keep theirs. Set only where the usual one is not private."""


def use_private_caches() -> None:
    """Sets the variables for this process and those that it starts."""
    os.environ.update(private_cache_variables(os.environ))


def private_cache_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of folders that no other user can write to, and creates the folders.

    A folder that `environment` names stays if that is true of it. Where there is no private cache folder, for instance
    because another user has created it, the folders are in a new one, which ends with this process.
    """
    root = _private_root()
    variables: dict[str, str] = {}
    for name, folder in FOLDERS.items():
        setting = environment.get(name, "")
        if setting and is_private(Path(setting)):
            variables[name] = setting
            continue
        if setting:
            log.warning("cache_folder_not_private", variable=name, path=setting, uses=str(root / folder))
        path = root / folder
        variables[name] = str(path if is_private(path) else _new_folder())
    return variables if _has_private_cache(environment) else {**variables, USER_CACHE: str(root)}


def is_private(folder: Path) -> bool:
    """Returns whether only this user and root can write to a folder, which is created if it does not exist.

    Links are followed only for the folders above it, which belong to root or this user.
    """
    if not folder.is_absolute():
        return False
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        above = [parent.stat() for parent in folder.resolve().parents]
    except OSError:
        return False
    owners = (0, os.geteuid())
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid in owners and os.access(folder, os.W_OK | os.X_OK)
    # The user's own group has no other members where new folders are writable for it (user private groups).
    is_open = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid())
    return is_own and not is_open and all(_is_safe(parent, owners) for parent in above)


def _is_safe(parent: os.stat_result, owners: tuple[int, ...]) -> bool:
    """Returns whether other users cannot replace what is in a folder. A folder of root that all may write to is a
    volume of a container, where there are no other users, or has the sticky bit."""
    is_open = bool(parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX)
    return parent.st_uid in owners and not (is_open and parent.st_uid != 0)


def _has_private_cache(environment: Mapping[str, str]) -> bool:
    setting = environment.get(USER_CACHE)
    try:
        return is_private(Path(setting) if setting else Path.home() / ".cache")
    except RuntimeError:  # no home
        return False


def _private_root() -> Path:
    """Returns the folder in the cache, or a new one if that is not private, or the user has none."""
    try:
        folder = (home() / "compiled").absolute()
    except RuntimeError:  # neither HOME nor an entry for the user
        return _new_folder()
    if is_private(folder):
        return folder
    root = _new_folder()
    log.warning("cache_folder_not_private", path=str(folder), uses=str(root))
    return root


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="astraflow-compiled-"))  # mode 0700, a name that cannot be guessed
    atexit.register(_removed, folder, os.getpid())
    return folder


def _removed(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not the end of a fork
        shutil.rmtree(folder, ignore_errors=True)
