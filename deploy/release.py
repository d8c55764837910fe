"""Builds the wheel of the last commit: `python -m deploy.release` writes it to dist.

The same commit gives the same bytes: times in the wheel are the commit's, and it contains committed files only. The
wheel is built twice and compared. Needs git, tar, and setuptools in the environment.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def committed(folder: Path) -> None:
    """Extracts the files of the last commit into a folder. Raises: CalledProcessError without git or a commit.

    Modes do not depend on the user. `tarfile` has no filter for them in Python 3.11.2, which Debian 12 has.
    """
    command = ["tar", "--extract", "--no-same-owner", "--no-same-permissions", "--directory", str(folder)]
    subprocess.run(command, check=True, input=_git("archive", "HEAD"), umask=0o022)  # noqa: S603 (fixed words and a path)


def commit_time() -> str:
    """Returns the time of the last commit. Unix seconds."""
    return _git("log", "-1", "--format=%ct").decode().strip()


def wheel_of(sources: Path, folder: Path, *, built_at: str) -> Path:
    """Builds the wheel of a copy of the sources; returns its path. Writes build files into the copy.

    built_at: time of all files in the wheel, in Unix seconds. Raises: CalledProcessError when the build fails.
    """
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(sources)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": built_at}
    subprocess.run(command, check=True, env=environment, cwd=sources, umask=0o022)  # noqa: S603 (fixed words and paths)
    (wheel,) = folder.glob("*.whl")
    return wheel


def build() -> Path:
    """Builds the wheel twice and writes it to DIST. Raises: ValueError when the two differ."""
    wheels = []
    with tempfile.TemporaryDirectory() as name:
        for attempt in ("first", "second"):
            folder = Path(name, attempt)
            sources = folder / "sources"
            sources.mkdir(parents=True)
            committed(sources)
            wheels.append(wheel_of(sources, folder, built_at=commit_time()))
        contents = [wheel.read_bytes() for wheel in wheels]
    if contents[0] != contents[1]:
        raise ValueError("cannot release: two builds of one commit differ; compare them with diffoscope")
    DIST.mkdir(exist_ok=True)
    for earlier in DIST.glob("*.whl"):
        earlier.unlink()
    target = DIST / wheels[0].name
    target.write_bytes(contents[0])
    return target


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True)  # noqa: S603, S607 (fixed words)
    return done.stdout


if __name__ == "__main__":
    print(build())  # noqa: T201 (the output of this command)
