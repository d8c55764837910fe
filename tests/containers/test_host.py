import pytest

from tests.containers.host import NotStarted, control_groups, mirror_of

FIRST = """\
29 23 0:26 / /sys/fs/cgroup/systemd rw,nosuid shared:5 - cgroup cgroup rw,xattr,name=systemd
30 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:6 - cgroup cgroup rw,cpu,cpuacct
31 23 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:7 - cgroup cgroup rw,memory
32 23 0:29 / /sys/fs/cgroup/unified rw,nosuid shared:8 - cgroup2 cgroup2 rw,nsdelegate
"""
SECOND = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:5 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_cgroup_v1_hierarchies_are_found_with_their_controllers() -> None:
    hierarchies = control_groups(FIRST)
    assert dict(zip(hierarchies.controllers, map(str, hierarchies.folders), strict=True)) == {
        "cpu,cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
        "memory": "/sys/fs/cgroup/memory",
    }


def test_the_cgroup_v2_hierarchy_has_no_named_controllers() -> None:
    hierarchies = control_groups(SECOND)
    assert ([str(folder) for folder in hierarchies.folders], hierarchies.controllers) == (["/sys/fs/cgroup"], ())


def test_without_control_groups_the_check_does_not_start() -> None:
    with pytest.raises(NotStarted):
        control_groups("21 1 8:1 / / rw - ext4 /dev/vda rw\n")


def test_the_mirror_with_complete_suites_is_selected() -> None:
    assert mirror_of(["http://mirror/debian-security/", "http://mirror/debian/"]) == "http://mirror/debian/"
    with pytest.raises(NotStarted):
        mirror_of(["http://mirror/ubuntu/"])
