"""Installed environment of a simulated engine, as a test makes it."""

import json
import sys
from pathlib import Path
from typing import Any, Self

from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.raas.engines.server.environments import Environment, environments_folder

_ROOT = Path(__file__).parents[3]
_WRAPPER = """#!/bin/sh
export PYTHONPATH={root}
exec {python} -S -m tests.fakes.engine_server {kind} {folder} "$@"
"""


class FakeEnvironment:
    """Environment below `$ASTRAFLOW_HOME/engines`, found as a real one is."""

    def __init__(self, kind: str, *, device: str = "cpu", step_s: float = 0.004) -> None:
        """kind: `sglang` or `vllm`. step_s: seconds per decoding step, with which all requests get one token."""
        self._folder = environments_folder() / f"{kind}-fake"
        python = self._folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(
            _WRAPPER.format(root=_ROOT, python=sys.executable, kind=kind, folder=self._folder), encoding="utf-8"
        )
        python.chmod(0o755)
        (self._folder / "fake.json").write_text(json.dumps({"step_s": step_s}))
        Environment(kind=kind, device=device, version="fake", folder=self._folder).describe()

    @classmethod
    def of(cls, engine: ServerEngine) -> Self:
        """Returns the environment in which an engine runs its servers."""
        environment = cls.__new__(cls)
        environment._folder = engine.environment.folder
        return environment

    def fail_start(self, **fault: Any) -> None:
        """Makes the following starts fail: `exit=CODE`, also only `with_argument=NAME`, or `delay_s=SECONDS`."""
        self._write(start=fault)

    def fail(self, path: str, **fault: Any) -> None:
        """Makes a route fail, once or `times` times: see `frontend.Faults`."""
        self._write(routes={path: fault})

    def hold(self, tokens: int) -> None:
        """Makes every request wait when it has this many tokens, until `release`."""
        self._replace("hold", str(tokens))

    def release(self) -> None:
        """Lets the requests go on."""
        (self._folder / "hold").unlink(missing_ok=True)

    def heal(self) -> None:
        """Removes all faults."""
        (self._folder / "faults.json").unlink(missing_ok=True)

    def _write(self, **faults: Any) -> None:
        self._replace("faults.json", json.dumps(faults))

    def _replace(self, name: str, content: str) -> None:
        partial = self._folder / f"{name}.partial"
        partial.write_text(content)
        partial.replace(self._folder / name)
