"""A soak of one minute, with random faults each time."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.processes import ROOT


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.flaky(reruns=1)  # a minute of random faults takes longer than its limit on a busy machine
@pytest.mark.timeout(400)
def test_no_invariant_breaks_in_a_minute_of_faults(tmp_path: Path) -> None:
    """A failure prints the figures, the violations, and the command that repeats the faults."""
    arguments = ["--minutes", "1", "--seed", str(random.randrange(2**16)), "--directory", str(tmp_path)]
    command = [sys.executable, "-m", "soak", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "kills" in ran.stdout
    assert re.search(r"columns +[1-9]\d* tokens compared", ran.stdout)
