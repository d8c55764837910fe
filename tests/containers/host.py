"""Host requirements and properties: programs, Debian mirror, control groups."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = {
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "slirp4netns": "slirp4netns",
    "unshare": "util-linux",
}
"""Required programs and their Debian packages."""

NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup")


class NotStarted(Exception):
    """No Docker Engine can be started on this host. The message gives the cause and the remedy."""


def check_host() -> None:
    """Raises: NotStarted when a program, root or a namespace is missing."""
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if missing:
        raise NotStarted(f"programs are missing; apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise NotStarted("this user is not root; run `make containers` as root")
    tried = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False, timeout=30
    )
    if tried.returncode:
        cause = " ".join(tried.stderr.split())
        raise NotStarted(f"this host gives out no namespaces ({cause}); run it where root may call unshare")


def debian_mirror() -> str:
    """Returns the address of the Debian mirror that apt uses on this host. Raises: NotStarted."""
    if shutil.which("apt-get") is None:
        raise NotStarted("there is no apt here; run it on Debian")
    listing = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    pip_settings = subprocess.run(listing, capture_output=True, text=True, check=False, timeout=60).stdout
    return mirror_of(pip_settings.splitlines())


def mirror_of(addresses: Iterable[str]) -> str:
    """Returns the mirror with complete suites; skips mirrors of security updates. Raises: NotStarted."""
    for address in addresses:
        if address.rstrip("/").endswith("/debian"):
            return address
    raise NotStarted("apt has no list of a Debian mirror; run `apt-get update` on Debian")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroups:
    """Control group hierarchies of the host that an engine needs."""

    folders: tuple[Path, ...]
    """Mount point of each hierarchy."""

    controllers: tuple[str, ...]
    """The controllers of each hierarchy of version 1, separated by commas; empty with version 2."""


def control_groups(mounts: str) -> ControlGroups:
    """Parses the text of /proc/self/mountinfo. Raises: NotStarted when no hierarchy is mounted."""
    first = {}
    second = []
    for line in mounts.splitlines():
        left, right = line.split(" - ")
        folder, (kind, _, options) = Path(left.split()[4]), right.split()
        if kind == "cgroup" and "name=" not in options:
            named = [word for word in options.split(",") if word not in ("rw", "ro")]
            first[",".join(word for word in named if not _is_flag(word))] = folder
        elif kind == "cgroup2":
            second.append(folder)
    if first:
        return ControlGroups(folders=tuple(first.values()), controllers=tuple(first))
    if second:
        return ControlGroups(folders=(second[0],), controllers=())
    raise NotStarted("no control groups are mounted; mount /sys/fs/cgroup")


def _is_flag(option: str) -> bool:
    return option in ("xattr", "noprefix", "clone_children", "none") or "=" in option
