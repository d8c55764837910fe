"""Tests and benchmarks of a GPU, and one report of all.

    python -m tests.gpu [--device cuda] [--report build/gpu_report.md] [--only tests steps lora publishing engines]
                        [--shapes Qwen3-1.7B] [--loops "local, compiled" bare] [--rows 4k 16k]

Runs the tests marked `gpu`, then training steps of models with random weights against a bare transformers loop and
TRL, then publishing from the device, then engine servers that are installed for a GPU. The report is written after
each part. With `--device cpu` everything runs at small sizes, to show that only the device is new on a GPU. Exits
with code 1 when a test fails, losses differ, or a benchmark fails.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from astraflow.models.precision import device_of
from astraflow.raas.engines.server.environments import installed_environments
from tests.gpu.machine import facts
from tests.gpu.report import Results, markdown
from tests.gpu.shapes import Sizes, sizes_of

PARTS = ("tests", "steps", "lora", "publishing", "engines")
SHOWN_OUTPUT = 2000
"""Characters of the output of a failed benchmark in the report."""


def run_tests(results: Results, folder: Path) -> Iterator[None]:
    """Runs the tests marked `gpu`."""
    outcome = folder / "gpu_tests.xml"
    outcome.unlink(missing_ok=True)
    # Another release of torch than the pinned one, which a GPU host may have, has warnings of its own.
    options = ("-o", "filterwarnings=default", "--durations=8", f"--junitxml={outcome}")
    command = ("-m", "pytest", "-q", "-m", "gpu", "tests/gpu", *options)
    subprocess.run([sys.executable, *command], check=False, env={**os.environ, "TEST_DEVICE": results.device})
    if not outcome.exists():
        results.failures = ["the tests did not run: see the output above"]
        return
    cases = list(ElementTree.parse(outcome).iter("testcase"))  # noqa: S314 (written by pytest just now)
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    results.tests = {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": len(failed),
        "skipped": len(skipped),
    }
    results.failures = [f"test failed: {case.get('classname')}::{case.get('name')}" for case in failed]
    yield


def run_steps(results: Results, chosen: argparse.Namespace, sizes: Sizes) -> Iterator[None]:
    """Measures the chosen loops, by default all, with the chosen shapes, each in a process of its own."""
    rows = chosen.rows or list(sizes.rows)
    for shape in chosen.shapes or sizes.shapes:
        results.steps[shape] = {}
        for loop in chosen.loops or sizes.loops:
            arguments = ("--device", results.device, "--shape", shape, "--loop", loop, "--rows", *rows)
            done = _python("tests.gpu.step_speed", *arguments)
            results.steps[shape][loop] = (
                {"error": f"failed: {done.stderr.strip()[-SHOWN_OUTPUT:]}"}
                if done.returncode
                else json.loads(done.stdout.strip().splitlines()[-1])
            )
            yield


def run_lora(results: Results) -> Iterator[None]:
    """Measures steps with adapters."""
    results.texts["LoRA"] = _text("tests.gpu.lora_speed", "--device", results.device)
    yield


def run_publishing(results: Results, sizes: Sizes) -> Iterator[None]:
    """Measures the copy off the device, and the delta's encoding and upload."""
    arguments = ("--device", results.device, "--sizes", *map(str, sizes.published_mb))
    results.texts["Publishing from the device (milliseconds)"] = _text("benchmarks.publishing", *arguments)
    yield


def run_engines(results: Results) -> Iterator[None]:
    """Measures the engine servers that are installed for this device; on a GPU with layers of 8 billion parameters."""
    environments = [environment for environment in installed_environments() if environment.device == results.device]
    if not environments:
        results.texts["Engine servers"] = (
            f"skipped: no engine is installed for {results.device}; run `astraflow engines install --all`"
        )
    for environment in environments:
        is_small = results.device == "cpu"
        arguments = ("--model", "small" if is_small else "8b", "--updates", "5" if is_small else "50")
        parts = ("--parts", "throughput", "patch-1", "--rounds", "1" if is_small else "5")
        title = f"Engine server {environment.name}, {environment.version}"
        results.texts[title] = _text("benchmarks.engine_servers", environment.kind, *arguments, *parts)
        yield


def _python(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    sys.stdout.write(f"{module} {' '.join(arguments)}\n")
    sys.stdout.flush()
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False, env=dict(os.environ)
    )


def _text(module: str, *arguments: str) -> str:
    done = _python(module, *arguments)
    return done.stdout if done.returncode == 0 else f"failed: {done.stderr.strip()[-SHOWN_OUTPUT:]}"


def main() -> int:
    """Runs the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--report", type=Path, default=Path("build/gpu_report.md"))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    for name in ("shapes", "loops", "rows"):
        parser.add_argument(f"--{name}", nargs="+", help="of the training steps; default: all")
    chosen = parser.parse_args()
    device = device_of(chosen.device)
    sizes = sizes_of(device.type)
    chosen.report.parent.mkdir(parents=True, exist_ok=True)
    results = Results(device=device.type, machine=list(facts(device)))
    parts: dict[str, Any] = {
        "tests": lambda: run_tests(results, chosen.report.parent),
        "steps": lambda: run_steps(results, chosen, sizes),
        "lora": lambda: run_lora(results),
        "publishing": lambda: run_publishing(results, sizes),
        "engines": lambda: run_engines(results),
    }
    for name in chosen.only:
        for _ in parts[name]():
            chosen.report.write_text(markdown(results))
    chosen.report.write_text(markdown(results))
    sys.stdout.write(f"{chosen.report}: {len(results.problems)} problems\n")
    return 1 if results.problems else 0


if __name__ == "__main__":
    sys.exit(main())
