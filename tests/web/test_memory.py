"""Modules that the web process loads: none that it never uses."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

NEVER_USED = {
    *("numpy", "torch", "numba", "pyarrow"),
    *("alembic", "mako", "sqlalchemy.dialects.postgresql"),
    *("boto3", "httpx"),
    *("rich", "pygments"),
    *("psutil", "pydantic.v1", "watchfiles"),
}

SERVED = """
import sys
from pathlib import Path
import web.__main__
from web.database.db import open_database
from web.database.migration_process import migrate_in_process

directory = Path(sys.argv[1])
migrate_in_process(directory, "")
open_database(directory).close()
print("\\n".join(sys.modules))
"""


def loaded(directory: Path) -> set[str]:
    """Returns the modules of a process that has opened the database in `directory` as the web process does."""
    done = subprocess.run([sys.executable, "-c", SERVED, str(directory)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("is_new", [True, False])
def test_the_web_process_loads_nothing_that_it_never_uses(tmp_path: Path, is_new: bool) -> None:
    if not is_new:
        loaded(tmp_path)
    modules = loaded(tmp_path)
    assert {"web.app", "web.service", "astraflow.client.control_plane", "sqlalchemy"} <= modules
    assert modules.isdisjoint(NEVER_USED)
