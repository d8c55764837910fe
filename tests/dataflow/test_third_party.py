"""Data algorithms of an installed package, discovered through entry points."""

import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.config import StreamConfig
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.service import build_run
from astraflow.dataflow.serving.samplers import samplers
from astraflow.dataflow.storage.null_journal import NullJournal
from tests.dataflow.running import archive_in, config
from tests.errors import raises_code
from tests.fakes.clock import ManualClock

ENTRY_POINTS = """
[astraflow.selectors]
sample_last = sample_plugins.algorithms
[astraflow.filters]
sample_picky = sample_plugins.algorithms
[astraflow.samplers]
sample_latest = sample_plugins.algorithms
"""

MODULE = '''
"""One of each, as a third party would write them."""

from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.serving.samplers import samplers
from astraflow.runtime.config.base import Config


class Options(Config):
    level: float = 0.5


class Stateless:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def metrics(self):
        return {"level": self.options.level}


@selectors.register("sample_last", options=Options)
class Last(Stateless):
    def __init__(self, options, size, seed):
        self.options, self.size = options, size

    def select(self):
        return self.size - 1

    def observe(self, index, rewards):
        pass

    def advance(self, version):
        pass


@filters.register("sample_picky", options=Options)
class Picky(Stateless):
    def __init__(self, options):
        self.options = options

    def keep(self, group, version):
        return max(group.rewards()) > self.options.level


@samplers.register("sample_latest", options=Options)
class Latest(Stateless):
    def __init__(self, options):
        self.options = options

    def fresh_count(self, count, trained):
        return count

    def sample(self, fresh, trained, count, version):
        return list(fresh)[-count:]
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory into which pip installed the package, from a wheel built here."""
    folder = tmp_path_factory.mktemp("third_party")
    wheel, site = folder / "sample_plugins-1.0-py3-none-any.whl", folder / "site"
    files = {
        "sample_plugins/__init__.py": "",
        "sample_plugins/algorithms.py": MODULE,
        "sample_plugins-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: sample-plugins\nVersion: 1.0\n",
        "sample_plugins-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "sample_plugins-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
        "sample_plugins-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True)
    return site


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the package importable, and removes it again after the test."""
    for registry in (selectors, filters, samplers):
        monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    for module in ("sample_plugins", "sample_plugins.algorithms"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("installed")
def test_a_run_uses_plugins_of_an_installed_package(tmp_path: Path) -> None:
    plain = config()
    chosen = {"selector": {"kind": "sample_last", "level": 0.1}, "filters": ({"kind": "sample_picky"},)}
    run_config = plain.model_copy(
        update={
            "flows": {name: flow.model_copy(update=chosen) for name, flow in plain.flows.items()},
            "streams": {"solver": StreamConfig(sampler={"kind": "sample_latest"})},
        }
    )
    with closing(archive_in(tmp_path)) as archive:
        run = build_run(run_config, journal=NullJournal(), archive=archive, clock=ManualClock())
        (flow,) = run.flows.values()
        assert flow.issue().prompt_index == flow.issue().prompt_index > 0
        assert flow.metrics() == {"sample_last.level": 0.1, "sample_picky.level": 0.5}
        assert run.streams[PolicyId("solver")].metrics() == {"sample_latest.level": 0.5}


@pytest.mark.long
@pytest.mark.usefixtures("installed")
def test_plugins_of_an_installed_package_are_listed_and_their_options_checked() -> None:
    assert "sample_last" in selectors.kinds()
    assert "sample_picky" in filters.kinds()
    assert "sample_latest" in samplers.kinds()
    with raises_code(InvalidInput, "config.invalid", "sample_picky.levels", "'level'"):
        filters.build({"kind": "sample_picky", "levels": 1})


def test_plugins_of_a_package_that_is_not_installed_are_unknown() -> None:
    with raises_code(InvalidInput, "plugin.unknown_kind", "'sample_last'"):
        selectors.build({"kind": "sample_last"}, 10, 0)
