"""Virtual environments are deleted whole, and complete only with a valid description."""

from pathlib import Path

from astraflow.runtime.virtual_environments import VirtualEnvironment, complete_environments, delete_environment


def installed(folder: Path) -> VirtualEnvironment:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    environment = VirtualEnvironment(folder=folder, kind="tool", version="1.2")
    environment.describe()
    return environment


def test_a_link_to_an_environment_is_deleted_and_not_what_it_leads_to(tmp_path: Path) -> None:
    environment = installed(tmp_path / "elsewhere" / "a")
    (tmp_path / "b").symlink_to(environment.folder)
    assert [item.name for item in complete_environments(VirtualEnvironment, tmp_path)] == ["b"]
    delete_environment(tmp_path / "b", VirtualEnvironment.description)
    assert complete_environments(VirtualEnvironment, tmp_path) == []
    assert complete_environments(VirtualEnvironment, tmp_path / "elsewhere") == [environment]
    delete_environment(tmp_path / "b", VirtualEnvironment.description)  # there is none


def test_an_environment_is_deleted_with_its_files(tmp_path: Path) -> None:
    environment = installed(tmp_path / "a")
    delete_environment(environment.folder, VirtualEnvironment.description)
    assert list(tmp_path.iterdir()) == []
