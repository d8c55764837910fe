"""Programs and conditions that some tests need: the Debian package of each, and the tests that are skipped without it.

One table for the session header, for the marker `needs`, for `make system-packages` and for `.ci/run`. Standard library
only: `python -m tests.tools packages` runs before anything is installed.
"""

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deploy.helm import program

FONTS = (
    "truetype/dejavu/DejaVuSans.ttf",
    "truetype/liberation*/LiberationSans-Regular.ttf",
    "truetype/noto/NotoSans-Regular.ttf",
)
"""One file of each required font set, below /usr/share/fonts."""


SYSTEM_PATH = "/usr/sbin:/sbin"
"""Folders of administrator programs; not in the PATH of every user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A requirement of tests that the project does not install."""

    tests: str
    """Tests that are skipped without it."""
    is_there: Callable[[], bool]
    packages: tuple[str, ...] = ()
    """Debian packages that contain it; empty for a condition of the machine that no package changes."""
    advice: str = ""
    """Remedy where no package helps."""


def _program(name: str) -> bool:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}") is not None


def _all_fonts() -> bool:
    return all(any(Path("/usr/share/fonts").glob(pattern)) for pattern in FONTS)


def _has_address() -> bool:
    """Returns whether the routing table has a default route; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return False
        return not probe.getsockname()[0].startswith("127.")


def _has_link() -> bool:
    from benchmarks.wide_area.link import reason_against  # its imports are not installed yet for `packages`

    return reason_against() is None


def compose_plugin() -> Path | None:
    """Returns Docker's plugin `compose`: of this machine, or of the engine of `make containers`; None without one."""
    engines = sorted(Path("~/.cache/astraflow/containers").expanduser().glob("engine-*/usr/libexec/docker"))
    own = [
        Path("~/.docker").expanduser(),
        *map(Path, ("/usr/local/lib/docker", "/usr/lib/docker", "/usr/libexec/docker")),
    ]
    plugins = [folder / "cli-plugins" / "docker-compose" for folder in (*own, *engines)]
    return next((plugin for plugin in plugins if plugin.is_file()), None)


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


TOOLS: Mapping[str, Tool] = {
    "chromium": Tool(
        tests="browser tests of the pages",
        is_there=partial(_program, "chromium-headless-shell"),
        packages=("chromium-headless-shell",),
    ),
    "fonts": Tool(
        tests="browser tests of the layout with each font set",
        is_there=_all_fonts,
        packages=("fonts-dejavu-core", "fonts-liberation", "fonts-noto-core"),
    ),
    "promtool": Tool(tests="check of the metrics", is_there=partial(_program, "promtool"), packages=("prometheus",)),
    "sshd": Tool(tests="hosts over SSH", is_there=partial(_program, "sshd"), packages=("openssh-server",)),
    "nginx": Tool(tests="pages behind a reverse proxy", is_there=partial(_program, "nginx"), packages=("nginx",)),
    "postgresql": Tool(
        tests="databases on PostgreSQL",
        is_there=lambda: any(Path("/usr/lib/postgresql").glob("*/bin/initdb")),
        packages=("postgresql",),
    ),
    "shellcheck": Tool(
        tests="check of shell scripts", is_there=partial(_program, "shellcheck"), packages=("shellcheck",)
    ),
    "slurm": Tool(
        tests="jobs of a real Slurm cluster",
        is_there=lambda: all(_program(name) for name in ("munged", "slurmctld", "slurmd", "sbatch")),
        advice="apt-get install slurm-wlm munge, whose services an ordinary machine does not want",
    ),
    "systemd": Tool(tests="check of the units", is_there=partial(_program, "systemd-analyze"), packages=("systemd",)),
    "containers": Tool(
        tests="make containers",
        is_there=lambda: all(_program(name) for name in ("slirp4netns", "mmdebstrap", "ip", "unshare", "nsenter")),
        packages=("slirp4netns", "mmdebstrap", "iproute2", "util-linux"),
    ),
    "compose": Tool(
        tests="Compose's own check of docker-compose.yml",
        is_there=lambda: compose_plugin() is not None,
        advice="install Docker Compose 2.24 or later, or run `make containers` once",
    ),
    "java": Tool(
        tests="the environment scienceworld", is_there=partial(_program, "java"), packages=("default-jre-headless",)
    ),
    "helm": Tool(
        tests="rendering of the Helm chart",
        is_there=program.path().is_file,
        advice="run `make helm`, which downloads 39 MB",
    ),
    "root": Tool(tests="a full disk", is_there=lambda: os.geteuid() == 0, advice="run them as root"),
    "address": Tool(
        tests="runs that machines elsewhere join",
        is_there=_has_address,
        advice="give this machine an address beyond loopback",
    ),
    "link": Tool(
        tests="transfers over a slow link",
        is_there=_has_link,
        advice="run them as root, where network namespaces and /dev/net/tun are allowed",
    ),
    "ipv6": Tool(tests="listening on IPv6", is_there=_has_ipv6, advice="enable IPv6 on loopback"),
    "glibc": Tool(
        tests="memory of processes", is_there=lambda: platform.libc_ver()[0] == "glibc", advice="run them with glibc"
    ),
}
"""Tools by their name for `@pytest.mark.needs`."""


def missing(names: Iterable[str] = TOOLS) -> list[str]:
    """Returns the named tools that this machine lacks."""
    return [name for name in names if not TOOLS[name].is_there()]


def why(name: str) -> str:
    """Returns the missing tools and the remedy, as the reason of a skip."""
    tool = TOOLS[name]
    how = "run `make system-packages`" if tool.packages else tool.advice
    return f"cannot run without {name} ({tool.tests}): {how}"


def packages(names: Iterable[str]) -> list[str]:
    """Returns the Debian packages of the named tools."""
    return [package for name in names for package in TOOLS[name].packages]


def summary(names: Iterable[str]) -> list[str]:
    """Returns a line for each missing tool, and how to install the packaged ones; empty when nothing is missing."""
    lines = [f"skipped without {name}: {TOOLS[name].tests}" for name in names]
    wanted = packages(names)
    if wanted:
        lines.append(f"to run them: make system-packages (apt-get install {' '.join(wanted)})")
    return lines + [f"to run {TOOLS[name].tests}: {TOOLS[name].advice}" for name in names if TOOLS[name].advice]


if __name__ == "__main__":
    if sys.argv[1:] != ["packages"]:
        sys.exit("cannot run: one argument is expected; use `python -m tests.tools packages`")
    print(*packages(missing(name for name, tool in TOOLS.items() if tool.packages)))  # noqa: T201 (the output of this command)
