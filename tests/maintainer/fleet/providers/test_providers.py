"""Providers whose optional packages are not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[4]

WITHOUT = (
    "import sys; sys.modules[sys.argv.pop(1)] = None; from maintainer.fleet.__main__ import main; sys.exit(main())"
)
"""Python code that runs the fleet service without an optional package."""

FILES = {
    "ec2": 'regions = ["eu-west-1"]\ntypes = { "g6.xlarge" = 1.0 }\nmachine = { image_id = "ami-1" }\nboot = {}',
    "kubernetes": 'namespace = "nodes"\nimage = "node:1"\ntypes = { gpu = {} }',
    "skypilot": 'endpoint = "https://sky.example"\ntypes = { gpu = {} }',
    "static_ssh": 'hosts = [{ address = "10.0.0.7" }]',
}


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("ec2", "boto3"),
        ("kubernetes", "kubernetes"),
        ("skypilot", "httpx"),
        ("skypilot", "yaml"),
        ("static_ssh", "asyncssh"),
    ],
)
def test_a_missing_package_of_a_provider_ends_the_start_and_names_the_extra(
    kind: str, package: str, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(f'cluster = "evening"\n[providers.here]\nkind = "{kind}"\n{FILES[kind]}\n')
    service = ["--config", str(file), "--dataflow", "127.0.0.1:1", "--directory", str(tmp_path / "fleet")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *service],
        cwd=ROOT,
        env={"ASTRAFLOW_TOKEN": "5f" * 32},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done
    assert repr(package) in done.stderr
    assert "astraflow[" in done.stderr
