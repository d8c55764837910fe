#!/bin/sh
# Prepares the namespaces of one Docker Engine and becomes their first process: engine.sh ROOT SOURCE STATE [CONTROLLERS...]
#   ROOT         the file system that holds the engine; it becomes /
#   SOURCE       the repository, read-only at /src
#   STATE        a folder for what the check exchanges with the engine, at /state and at its own path
#   CONTROLLERS  hierarchies of cgroup version 1, as `cpu,cpuacct`; none on a host with version 2
# Called by tests/containers/engine.py with `unshare`; the engine itself is started later, so that it can be restarted.
set -eu
root=$1 source=$2 state=$3
shift 3

mount --bind "$root" "$root"
mkdir -p "$root/src" "$root/state" "$root/.host"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
mount --bind "$source" "$root/src"
mount -o remount,bind,ro "$root/src"
mount --bind "$state" "$root/state"
mkdir -p "$root$state"
mount --bind "$state" "$root$state"

groups=$root/sys/fs/cgroup
if [ "$#" -eq 0 ]; then
    mount -t cgroup2 cgroup2 "$groups"
else
    mount -t tmpfs tmpfs "$groups"
    for controllers in "$@"; do
        mkdir "$groups/$controllers"
        mount -t cgroup -o "$controllers" cgroup "$groups/$controllers"
    done
fi

echo "nameserver 10.0.2.3" >"$root/etc/resolv.conf" # slirp4netns answers there
cd "$root"
pivot_root . .host
exec chroot . /bin/sh -euc '
umount -l /.host
ip link set lo up
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then # no process may stay in a group that hands controllers on
    mkdir -p /sys/fs/cgroup/first
    echo 1 >/sys/fs/cgroup/first/cgroup.procs
    sed "s/[^ ]*/+&/g" /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
fi
touch /state/prepared
exec docker-init -- sleep infinity'
