"""Python whose imports for ranks of a trainer are done: `-m MODULE` or `-c PROGRAM`. Run by `tests.fakes.forking`."""

import os
import runpy
import sys
from pathlib import Path

from astraflow.trainer.rank_launch import PARENT
from tests.fakes.forking import ForkingProgram

IMPORTS = (
    "astraflow.cli.main",
    "astraflow.cli.serve",
    "astraflow.trainer.backends.fsdp",
    "torch.distributed.fsdp",
    "transformers.models.qwen3.modeling_qwen3",
)


def main() -> None:
    """Runs the module or the program."""
    # The kernel ends a rank with its parent, which here is the process that forks; its client ends it instead.
    os.environ.pop(PARENT, None)
    option, target, *arguments = sys.argv[1:]
    sys.argv = [target, *arguments]
    if option == "-m":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        exec(compile(target, "<program>", "exec"), {"__name__": "__main__"})  # noqa: S102 (a program of a test)


def forked_python(directory: Path) -> ForkingProgram:
    """Returns the program, which takes the place of `python`."""
    return ForkingProgram(directory, "tests.fakes.forked_python", *IMPORTS)
