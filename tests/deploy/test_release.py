"""The wheel, in a fresh environment, runs outside of a checkout with its recipes, templates and migrations."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.cli.ports import free_ports
from deploy.release import ROOT, wheel_of

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_S = 300.0

BUILT_AT = "1700000000"


def sources(folder: Path) -> Path:
    """Copies the tracked files of the working tree; returns their folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return folder


def installed(wheel: Path, folder: Path) -> Path:
    """Installs the wheel in a fresh environment with the dependencies of this one; returns its folder of programs.

    The dependencies come from a path file, which does not make the sources of this checkout importable.
    """
    venv.create(folder, with_pip=False)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", f"--python={folder}/bin/python"]
    subprocess.run([*command, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)], check=True)
    return folder / "bin"


@contextmanager
def served_page(command: list[str], port: int, **options: Any) -> Iterator[str]:
    """Starts the page; yields the address of its login form, which it serves after it has created its tables."""
    address = f"http://127.0.0.1:{port}/login"
    with subprocess.Popen([*command, "--port", str(port)], **options) as process:
        last = time.monotonic() + PATIENCE_S
        try:
            while not is_served(address):
                assert process.poll() is None and time.monotonic() < last
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()


def is_served(address: str) -> bool:
    try:
        return httpx.get(address).status_code == 200
    except httpx.TransportError:
        return False


def test_two_builds_are_equal_and_the_installed_wheel_runs_outside_of_a_checkout(tmp_path: Path) -> None:
    folders = [sources(tmp_path / name) for name in ("first", "second")]
    packaged = {
        str(path.relative_to(folders[0]))
        for package in ("astraflow", "maintainer", "recipes", "web")
        for path in (folders[0] / package).rglob("*")
        if path.is_file()
    }
    wheels = [wheel_of(folder, folder.with_suffix(".dist"), built_at=BUILT_AT) for folder in folders]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == packaged

    programs = installed(wheels[0], tmp_path / "venv")
    outside = tmp_path / "outside"
    outside.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"ASTRAFLOW_HOME": str(tmp_path / "home"), "PATH": f"{programs}:/usr/bin:/bin"}

    def output(*words: str) -> str:
        done = subprocess.run(
            words, cwd=outside, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    modules = output("python", "-c", "import astraflow, maintainer, web; print(astraflow, maintainer, web)")
    assert str(ROOT) not in modules
    recipes = {recipe["name_or_path"] for recipe in json.loads(output("astraflow", "recipes", "--json"))}
    assert {path.parent.name for path in ROOT.glob("recipes/*/recipe.toml")} <= recipes
    output("astraflow", "run", "smoke", "--headless", "--no-web", "--json", "summary.json")
    assert json.loads((outside / "summary.json").read_text())["balanced"]
    (port,) = free_ports(1)
    with served_page(["astraflow", "serve", "web", "--directory", "page"], port, cwd=outside, env=environment) as form:
        paths = re.findall(r'(?:href|src)="(/static/[^"]+)"', httpx.get(form).text)
        assert paths
        assert all(is_served(f"http://127.0.0.1:{port}{path}") for path in paths)
