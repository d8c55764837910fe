"""Measures every causal family of the installed transformers, and writes the table of docs/reference/model-families.md.

    python -m benchmarks.model_families [FAMILY ...] [--figures]

With families it prints their rows only; `--figures` prints the differences, too.
"""

import argparse
import sys
from collections.abc import Iterator

import torch

from astraflow.runtime import logs
from benchmarks.model_families.configurations import FAMILIES, NOT_BUILT
from benchmarks.model_families.measure import Difference, FamilyResult, measured
from benchmarks.model_families.page import PAGE, page_text, row


def main() -> None:
    """Measures and prints or writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--figures", action="store_true")
    arguments = parser.parse_args()
    logs.configure(level="ERROR")
    torch.set_num_threads(1)
    results = []
    for family in arguments.families or [family for family in FAMILIES if family not in NOT_BUILT]:
        results.append(measured(family))
        sys.stdout.write(row(results[-1]) + "\n")
        if arguments.figures:
            sys.stdout.writelines(f"    {line}\n" for line in _figures(results[-1]))
        sys.stdout.flush()
    if not arguments.families:
        PAGE.write_text(page_text(results))


def _figures(result: FamilyResult) -> Iterator[str]:
    for batching, difference in result.batchings.items():
        yield f"{batching.value:8} {_figure(difference)}"
    yield f"{'rounding':8} {_figure(result.rounding)}"
    yield f"{'engine':8} {result.engine} {result.engine_difference}"


def _figure(difference: Difference | str) -> str:
    if isinstance(difference, str):
        return " ".join(difference.split())
    return f"logprobs {difference.logprobs:.0e}, gradient {difference.gradient:.0e}"


if __name__ == "__main__":
    main()
