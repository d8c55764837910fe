"""Installs the environments of the recipes where they are missing: `make environments`."""

import subprocess
import sys
from pathlib import Path

from astraflow.environments.foreign.installation import installed_environments

RECIPES = Path(__file__).parents[3] / "recipes" / "environments"
PACKAGES = {"openenv": "reverse_rounds", "verifiers": "reverse_letters"}
"""Package of the recipe of each kind."""

if __name__ == "__main__":
    present = {environment.name for environment in installed_environments()}
    for kind, package in PACKAGES.items():
        if kind not in present:
            command = (
                "-m",
                "astraflow.cli",
                "environments",
                "install",
                kind,
                "--package",
                str(RECIPES / package),
                "--yes",
            )
            subprocess.run((sys.executable, *command), check=True)
