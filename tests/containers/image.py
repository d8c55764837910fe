"""The engine's file system, the base image and the AstraFlow image, each built once and cached.

There is no registry: both file systems come from the Debian mirror that apt uses on this host, and the build configures
pip as this host does.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from configparser import RawConfigParser
from pathlib import Path

from tests.containers.engine import Engine
from tests.containers.host import NotStarted, debian_mirror

ENGINE_SUITE = "trixie"
ENGINE_PACKAGES = "ca-certificates,docker.io,docker-cli,docker-compose,iproute2,iptables,podman,tini"
"""Debian 13 has Docker Engine 26, Compose 2.26 and Podman 5.4; docker-compose.yml needs 25 and 2.24."""

BASE_SUITE = "bookworm"
BASE_PACKAGES = "ca-certificates,python3-venv"
"""Debian 12 has Python 3.11; it stands for `python:3.11-slim`."""

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""Authorities that this host trusts; the build trusts the same ones."""

IMAGE = "astraflow:containers"
BUILD_S = 1800.0
CACHED_LAYERS = "8gb"

_REMOTE = ("http://", "https://")


def engine_root(cache: Path) -> Path:
    """Returns the folder with the engine's file system; creates it when missing. Raises: NotStarted."""
    named = hashlib.sha256(f"{ENGINE_SUITE} {ENGINE_PACKAGES}".encode()).hexdigest()[:12]
    root = cache / f"engine-{named}"
    if not root.is_dir():
        draft = cache / f"{root.name}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        done = subprocess.run(
            _bootstrap(ENGINE_PACKAGES, ENGINE_SUITE, str(draft)), capture_output=True, text=True, check=False
        )
        if done.returncode:
            stderr = " ".join(done.stderr.split())[-500:]
            raise NotStarted(f"mmdebstrap did not make the engine's file system ({stderr}); check apt's Debian mirror")
        draft.rename(root)
    return root


def build_base(engine: Engine) -> str:
    """Returns the name of the base image; imports it into the engine when missing. Raises: NotStarted."""
    trusted = hashlib.sha256(CERTIFICATES.read_bytes()).hexdigest()[:12]
    name = f"astraflow-base:{BASE_SUITE}-{trusted}"
    if engine.run("docker", "image", "inspect", name, is_checked=False).returncode:
        upload = f"--customize-hook=upload {CERTIFICATES} {CERTIFICATES}"
        making = _bootstrap(BASE_PACKAGES, BASE_SUITE, "-", upload)
        with subprocess.Popen(making, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as base:
            assert base.stdout is not None
            engine.feed(["docker", "import", "-", name], base.stdout)
        if base.returncode:
            raise NotStarted("mmdebstrap did not make the base image; check apt's Debian mirror")
    return name


def load_base(engine: Engine, base: str) -> None:
    """Copies the base image to the images of Podman when it is missing there. Raises: CommandFailed."""
    if engine.run("podman", "image", "exists", base, is_checked=False).returncode:
        engine.run("sh", "-c", 'docker save "$0" | podman load', base)


def build_image(engine: Engine, base: str, *, image: str = IMAGE, compose_file: str = "docker-compose.yml") -> int:
    """Builds the image with Compose as in docs/how-to/deploy.md. Returns its size in bytes. Raises: CommandFailed.

    compose_file: path in the engine's namespaces, relative to the repository.
    """
    (engine.state / "pip.conf").write_text(pip_configuration(_configured()))
    wheels = engine.state / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir()
    for wheel in local_wheels(_configured()):
        shutil.copy(wheel, wheels)
    also = engine.state / "build.yml"
    also.write_text("services: { keys: { build: { additional_contexts: { wheels: /state/wheels } } } }\n")
    environment = {
        "ASTRAFLOW_BASE": base,
        "ASTRAFLOW_IMAGE": image,
        "ASTRAFLOW_PIP_CONF": "/state/pip.conf",
        "ASTRAFLOW_TORCH": torch_variant(_configured()),
        "ASTRAFLOW_TOKEN_FILE": "/state/run-token",
        "COMPOSE_FILE": f"{compose_file}:/state/build.yml",
    }
    engine.run("docker", "compose", "build", environment=environment, limit_s=BUILD_S)
    engine.run("docker", "image", "prune", "--force")
    engine.run("docker", "builder", "prune", "--force", "--keep-storage", CACHED_LAYERS)
    return int(engine.output("docker", "image", "inspect", "--format", "{{.Size}}", image))


def pip_configuration(settings: Iterable[tuple[str, str]]) -> str:
    """Returns pip.conf for the build from this host's settings, without local folders."""
    kept = {name: " ".join(word for word in value.split() if word.startswith(_REMOTE)) for name, value in settings}
    lines = [f"{name} = {kept[name]}" for name in ("index-url", "extra-index-url", "find-links") if kept.get(name)]
    hosts = [f"trusted-host = {value}" for name, value in settings if name == "trusted-host"]
    return "\n".join(["[global]", f"cert = {CERTIFICATES}", "timeout = 180", *lines, *hosts]) + "\n"


def local_wheels(settings: Iterable[tuple[str, str]]) -> list[Path]:
    """Returns the torch wheels in the local folders that pip is configured to search."""
    words = [word for name, value in settings if name == "find-links" for word in value.split()]
    folders = [Path(word.removeprefix("file://")) for word in words if not word.startswith(_REMOTE)]
    return sorted({wheel.resolve() for folder in folders for wheel in folder.glob("torch-*.whl")})


def torch_variant(settings: Iterable[tuple[str, str]]) -> str:
    """Returns `cpu` where pip is configured with CPU wheels of torch, in a local folder or an index; else `cuda`."""
    chosen = list(settings)
    are_local = any("+cpu" in wheel.name for wheel in local_wheels(chosen))
    return "cpu" if are_local or any("/whl/cpu" in value for _, value in chosen) else "cuda"


def _configured() -> list[tuple[str, str]]:
    listing = [sys.executable, "-m", "pip", "config", "debug"]
    pip_settings = subprocess.run(listing, capture_output=True, text=True, check=True, timeout=60).stdout
    files = [
        line.strip().removesuffix(", exists: True")
        for line in pip_settings.splitlines()
        if line.endswith("exists: True")
    ]
    parser = RawConfigParser()
    parser.read(files)
    settings = list(parser.items("global")) if parser.has_section("global") else []
    prefix = "PIP_"
    from_environment = [
        (name.removeprefix(prefix).lower().replace("_", "-"), value)
        for name, value in os.environ.items()
        if name.startswith(prefix)
    ]
    return [*settings, *from_environment]


def _bootstrap(packages: str, suite: str, target: str, *options: str) -> list[str]:
    chosen = ["--quiet", "--variant=minbase", f"--include={packages}", *options]
    return ["mmdebstrap", *chosen, suite, target, debian_mirror()]
