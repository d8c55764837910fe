"""The run in the pictures: started here, given data to show, and ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RECIPE = Path(__file__).with_name("screenshots.toml")
START_S = 120.0
END_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """A running run."""

    link: str
    """The one-time login link of its page."""
    directory: Path
    settled_at: float
    """Monotonic seconds from which the pages have data to show."""

    def settle(self) -> None:
        """Waits until the run has settled."""
        time.sleep(max(0.0, self.settled_at - time.monotonic()))

    @contextmanager
    def stopped(self, program: str) -> Iterator[None]:
        """Stops a program while the block runs."""
        pid = json.loads((self.directory / "processes.json").read_text())[program]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def own_run(settle_s: float, *, say: Callable[[str], None]) -> Iterator[OwnRun]:
    """Starts the run of `docs/generate/screenshots.toml`, which settles after `settle_s`. Raises: RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="astraflow-pictures-") as home:
        directory = Path(home) / "runs" / "three-regions"
        arguments = ("run", str(RECIPE), "--fleet", "--maintainer", "scripted", "--no-browser")
        with _started(home, directory / "web", *arguments, "--run-dir", str(directory)) as link:
            say(f"the run has begun; its pictures are taken in {settle_s:.0f} s")
            yield OwnRun(link=link, directory=directory, settled_at=time.monotonic() + settle_s)


@contextmanager
def empty_page() -> Iterator[str]:
    """Yields the link of a page without runs."""
    with (
        tempfile.TemporaryDirectory(prefix="astraflow-pictures-") as home,
        _started(home, Path(home) / "web", "serve", "web", "--directory", str(Path(home) / "web")) as link,
    ):
        yield link


@contextmanager
def _started(home: str, page: Path, *arguments: str) -> Iterator[str]:
    """Runs the command until the block ends, then sends Ctrl-C; yields the link in the page's folder."""
    output_file = Path(home) / "said"
    with output_file.open("w") as out:
        process = subprocess.Popen(  # noqa: S603 (this checkout's own command)
            [sys.executable, "-m", "astraflow.cli", *arguments],
            env={**os.environ, "ASTRAFLOW_HOME": home},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            yield _link_in(page / "login-link", output_file, process)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=END_S)


def _link_in(file: Path, output_file: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists():
            return file.read_text()
        time.sleep(0.2)
    raise RuntimeError(f"no page was started; the command said: {output_file.read_text()[-800:]}")
