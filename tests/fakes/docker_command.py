"""Executable that acts as the command line of Docker: it runs commands of containers in a folder of this machine.

`docker_command.py FOLDER ARGUMENTS...`. The folder has a subfolder for each container, which stands for its root, and
the file `calls.jsonl` with the arguments of each call.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOTS = ("/app", "/tests", "/logs", "/tmp/.astraflow-folder")  # noqa: S108 (inside the container)


def main() -> int:
    folder, (verb, *arguments) = Path(sys.argv[1]), sys.argv[2:]
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps([verb, *arguments]) + "\n")
    if (folder / f"fail-{verb}").exists():
        sys.stderr.write(f"{verb} is broken\n")
        return 1
    if verb == "build":
        source = Path(arguments[-1])
        image = folder / arguments[arguments.index("--tag") + 1]
        image.mkdir(exist_ok=True)
        if (source / "files").is_dir():
            shutil.copytree(source / "files", image, dirs_exist_ok=True)
    elif verb == "run":
        if "--storage-opt" in arguments and (folder / "no-quotas").exists():
            sys.stderr.write(
                "docker: Error response from daemon: --storage-opt is supported only for overlay over xfs\n"
            )
            return 125
        number = len(list(folder.glob("container-*")))
        container = folder / f"container-{number}"
        image = folder / arguments[-2]
        shutil.copytree(image, container / "app") if image.is_dir() else (container / "app").mkdir(parents=True)
        if any(word.startswith("container:") for word in arguments):
            (container / "relays").touch()  # commands share the network of this machine, so it has nothing to relay
        sys.stdout.write(f"{container.name}\n")
    elif verb == "cp":
        return copy(folder, *[word for word in arguments if word != "--archive"])
    elif verb == "kill":
        (folder / arguments[-1] / "ended").touch()
    elif verb == "pause":
        (folder / arguments[-1] / "frozen").touch()
    elif verb == "unpause":
        (folder / arguments[-1] / "frozen").unlink()
    elif verb == "inspect":
        container = folder / arguments[-1]
        state = next(
            (name for name in ("exited", "running") if name == "running" or (container / "ended").exists()), ""
        )
        memory = " (out of memory)" if (container / "spent").exists() else ""
        sys.stdout.write(f"{state}{memory}\n" if container.is_dir() else "")
    elif verb == "exec":
        return execute(folder, arguments)
    elif verb == "rm":
        shutil.rmtree(folder / arguments[-1], ignore_errors=True)
    return 0


def copy(folder: Path, source: str, target: str) -> int:
    """Copies a folder into a container, or archives between a container and this process."""
    if target == "-":
        name, path = source.split(":")
        copied = Path(f"{folder / name}{path}")
        if not os.path.lexists(copied):
            sys.stderr.write(f"Error response from daemon: Could not find the file {path} in container {name}\n")
            return 1
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
            archive.add(copied, copied.name)
        return 0
    name, path = target.split(":")
    if source == "-":
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            archive.extractall(f"{folder / name}{path}", filter="fully_trusted")  # noqa: S202 (the engine wrote it)
    else:
        shutil.copytree(source, f"{folder / name}{path}", symlinks=True, dirs_exist_ok=True)
    return 0


def execute(folder: Path, arguments: list[str]) -> int:
    """Runs a command with the roots of the container in place of absolute paths."""
    workdir = "/app"
    while arguments[0].startswith("--"):
        if arguments[0] == "--interactive":
            arguments = arguments[1:]
            continue
        workdir = arguments[1] if arguments[0] == "--workdir" else workdir
        arguments = arguments[2:]
    container, command = folder / arguments[0], arguments[1:]
    if not container.is_dir() or (container / "ended").exists() or (container / "frozen").exists():
        sys.stderr.write(f"Error response from daemon: No such container: {arguments[0]}\n")
        return 1
    failures = folder / "start-failures"
    if failures.exists() and (remaining := int(failures.read_text())):
        failures.write_text(str(remaining - 1))
        sys.stderr.write("Error: OCI runtime error: runc: exec failed: unable to start container process\n")
        return 255
    if (container / "relays").exists():
        sys.stdout.write(command[3])  # the mark of a command that began
        return 0
    if "mkdir" in command and (folder / "read-only-root").exists():
        sys.stdout.write(command[3])
        sys.stderr.write("mkdir: cannot create directory '/logs': Permission denied\n")
        return 1
    if command[-1] == "pwd":
        answer = (folder / "workdir").read_text() if (folder / "workdir").exists() else workdir
        sys.stdout.write(f"{command[3] if command[0] == 'sh' else ''}{answer}\n")
        return 0
    (container / "tmp").mkdir(exist_ok=True)
    for root in ROOTS:
        command = [word.replace(root, f"{container}{root}") if root in word else word for word in command]
    variables = {**os.environ, "APP_DIR": f"{container}/app", "LOGS_DIR": f"{container}/logs"}
    return subprocess.run(command, cwd=f"{container}{workdir}", env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
