"""Renders the plain manifests in deploy/kubernetes from the chart: `python -m deploy.helm.render`.

They are for clusters without Helm, and show in reviews what a change of the chart does. A test keeps them equal to it.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.helm import program

CHART = Path(__file__).parent / "astraflow"
MANIFESTS = Path(__file__).parents[1] / "kubernetes"
RELEASE = NAMESPACE = "astraflow"

VALUES = {"run": "", "run-kind": "values-kind.yaml", "run-eks": "values-eks.yaml", "run-gke": "values-gke.yaml"}
"""Values file of each file of manifests, without `.yaml`; empty for the chart's own values."""

_HEAD = """\
# Rendered from deploy/helm/astraflow{values} by `python -m deploy.helm.render`: change the chart, not this file.
# Create the namespace `astraflow` and its secrets first (docs/how-to/kubernetes.md).
"""


def helm(*arguments: str) -> str:
    """Returns the output of a helm command. Raises: ValueError with helm's message."""
    done = subprocess.run([program.path(), *arguments], capture_output=True, text=True, check=False)  # noqa: S603 (own words)
    if done.returncode != 0:
        raise ValueError(f"cannot run helm: {done.stderr.strip()}; see deploy/helm/astraflow/values.yaml")
    return done.stdout


def rendered(values: str = "", settings: Sequence[str] = ()) -> str:
    """Returns the manifests for a values file and `key=value` settings, in the order of the templates."""
    options = ["--namespace", NAMESPACE]
    options += ["--values", str(CHART / values)] if values else []
    options += [word for setting in settings for word in ("--set-json", setting)]
    text = helm("template", RELEASE, str(CHART), *options)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def plain_manifests(name: str) -> str:
    """Returns the content of a file of manifests."""
    values = VALUES[name]
    return _HEAD.format(values=f" with {values}" if values else "") + rendered(values)


if __name__ == "__main__":
    program.install()
    for name in VALUES:
        (MANIFESTS / f"{name}.yaml").write_text(plain_manifests(name))
