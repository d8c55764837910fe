"""Makes this interpreter, which has an engine, an environment of AstraFlow: `engine_environment.py ENGINE FOLDER`.

ENGINE is `sglang` or `vllm`, installed for CUDA. FOLDER gets `ENGINE-cuda`, as `astraflow engines install` would
make it. Used by the Dockerfile with the standard library only, before AstraFlow is installed.
"""

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ENGINES = ("sglang", "vllm")


def describe(engine: str, folder: Path, *, interpreter: str) -> Path:
    """Writes the environment of an engine that `interpreter` has; returns its folder.

    Its program `bin/python` is a script and not a link: through a link, an interpreter of a virtual environment would
    not find its packages. Raises: ValueError for an unknown engine or one that is not installed.
    """
    if engine not in ENGINES:
        raise ValueError(
            f"cannot use the engine {engine!r} of the base image: unknown; use one of {', '.join(ENGINES)}"
        )
    try:
        release = version(engine)
    except PackageNotFoundError:
        raise ValueError(
            f"cannot use the engine {engine!r} of the base image: {interpreter} does not have it; choose another BASE"
        ) from None
    environment = folder / f"{engine}-cuda"
    program = environment / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {interpreter} "$@"\n')
    program.chmod(0o755)
    facts = {"kind": engine, "device": "cuda", "version": release}
    (environment / "engine.json").write_text(json.dumps(facts, indent=1) + "\n")
    return environment


if __name__ == "__main__":
    try:
        describe(sys.argv[1], Path(sys.argv[2]), interpreter=sys.executable)
    except ValueError as problem:
        sys.exit(str(problem))
