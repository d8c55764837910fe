"""The script with which a machine of a cloud becomes a node: it installs, joins, and ends the machine with the node.

POSIX shell, for cloud-init and whatever else runs a script at the first boot. Everything in it that is not fixed is
quoted. The join token is in the script, because that is where the machine can read it: it is good once, for one name
and pool and a quarter of an hour or so. The script puts it into a file that only its user reads, and never on a command
line. The machine ends when the node does, whatever the reason; when it cannot be installed in time; and at its expiry.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from astraflow.runtime.config import Config

KILL_AFTER_S = 30
"""What does not end when it is told to is killed."""


class BootOptions(Config):
    """How `astraflow` comes onto the machine. Exactly one of `wheel`, `image` and `program` says so."""

    wheel: str = ""
    """What pip installs into a new environment: a path, a URL (`https://.../astraflow.whl#sha256=...`) or a requirement
    (`astraflow[vllm] @ https://...`)."""
    wheelhouse: str = ""
    """Folder or URL with wheels of all that it needs; without it, pip asks where it is configured to ask."""
    image: str = ""
    """A container image that runs `astraflow` (see deploy/node); the machine has Docker."""
    image_options: tuple[str, ...] = ("--gpus", "all")
    """For `docker run`."""
    program: tuple[str, ...] = ()
    """What is there already, and stands before `join ADDRESS ...`; the first is a path."""
    before: tuple[tuple[str, ...], ...] = ()
    """Commands that come first, as lists of words: mounts, drivers, an install of your own."""
    directory: str = "/opt/astraflow"
    """The environment that `wheel` is installed into."""
    python: str = "python3"
    """Python 3.11 or later, for `wheel`."""
    secrets: str = "/run/astraflow"
    """Folder for the token; in memory, best, and gone when the node ends."""
    install_s: int = Field(default=900, gt=0)
    """Each command before the node may take so long."""
    end: tuple[str, ...] = ("shutdown", "-h", "now")
    """Ends the machine."""

    @model_validator(mode="after")
    def _is_one_way(self) -> Self:
        ways = [name for name in ("wheel", "image", "program") if getattr(self, name)]
        if len(ways) != 1:
            found = " and ".join(ways) or "none of them"
            raise ValueError(
                f"say how astraflow comes onto the machine with one of wheel, image, program: found {found}"
            )
        if self.program and not self.program[0].startswith("/"):
            raise ValueError("the program is a list that begins with an absolute path")
        if not self.secrets.startswith("/") or not self.end or not all(self.before):
            raise ValueError("secrets is an absolute path; `end` and each of `before` is a command")
        return self


def boot_script(
    options: BootOptions, *, join: Sequence[str], token: str, expires_at: float, drain_s: float = 0.0
) -> str:
    """The script. join: the node's arguments, from `join` on. expires_at: Unix seconds. drain_s: for a goodbye."""
    parts = {
        "TOKEN": shlex.quote(f"ASTRAFLOW_TOKEN={token}" if options.image else token),
        "SECRETS": shlex.quote(options.secrets),
        "EXPIRES": str(int(expires_at)),
        "BEFORE": "\n".join(f"in_time {options.install_s} {shlex.join(command)}" for command in _commands(options)),
        "NODE": shlex.join([*_program(options), *join]) + ("" if options.image else ' --token-file "$secrets/token"'),
        "KILL_AFTER": str(int(drain_s) + KILL_AFTER_S),
        "END": shlex.join(options.end),
    }
    return re.sub(r"@([A-Z_]+)@", lambda mark: parts[mark[1]], _SCRIPT.lstrip())


_SCRIPT = r"""
#!/bin/sh
# Made by AstraFlow for one machine: installs, joins the run as a node, and ends the machine with it.
set -eu
umask 077
secrets=@SECRETS@
expires_at=@EXPIRES@
node=

say() { printf 'astraflow: %s\n' "$*"; }

# shellcheck disable=SC2317 # a trap calls it
finish() {
    status=$?
    trap '' HUP INT TERM
    trap - EXIT
    rm -rf "$secrets"
    say "ends the machine (status $status)"
    @END@
    exit "$status"
}

# shellcheck disable=SC2317 # a trap calls it
go() { if [ -n "$node" ]; then kill -TERM "$node" 2>/dev/null || :; else exit 143; fi; }

in_time() {
    seconds=$1
    shift
    timeout --kill-after=@KILL_AFTER@ "$seconds" "$@" </dev/null &
    node=$!
    waited
    node=
    if [ "$status" -ne 0 ]; then
        say "$1 failed (status $status)"
        exit "$status"
    fi
}

waited() {
    status=0
    wait "$node" || status=$?
    while kill -0 "$node" 2>/dev/null; do
        status=0
        wait "$node" || status=$?
    done
}

trap finish EXIT
trap go HUP INT TERM

mkdir -p "$secrets"
printf '%s\n' @TOKEN@ >"$secrets/token"
@BEFORE@
left=$((expires_at - $(date +%s)))
if [ "$left" -le 0 ]; then
    say "it is past its time"
    exit 124
fi
say "the node starts"
timeout --kill-after=@KILL_AFTER@ "$left" @NODE@ </dev/null &
node=$!
waited
exit "$status"
"""


def _program(options: BootOptions) -> Sequence[str]:
    if options.program:
        return options.program
    if options.wheel:
        return (f"{options.directory}/bin/astraflow",)
    run = ("docker", "run", "--rm", "--name", "astraflow", "--network", "host")
    return (*run, "--env-file", f"{options.secrets}/token", *options.image_options, options.image)


def _commands(options: BootOptions) -> Sequence[Sequence[str]]:
    if not options.wheel:
        return options.before
    pip = (f"{options.directory}/bin/pip", "install", "--no-input", "--disable-pip-version-check")
    closed = ("--no-index", "--find-links", options.wheelhouse) if options.wheelhouse else ()
    return (*options.before, (options.python, "-m", "venv", options.directory), (*pip, *closed, options.wheel))
