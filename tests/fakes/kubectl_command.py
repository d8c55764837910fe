"""Executable that acts as `kubectl`: pods are folders of this machine, in which `exec` runs commands.

`kubectl_command.py FOLDER ARGUMENTS...`. The folder has a subfolder for each pod, which stands for its root, the file
`calls.jsonl` with the arguments and input of each call, and `fail-VERB` for each verb that does not work.
"""

import json
import shutil
import sys
from pathlib import Path

from tests.fakes.docker_command import execute


def main() -> int:
    folder, arguments = Path(sys.argv[1]), [word for word in sys.argv[2:] if not word.startswith("--namespace=")]
    verb, *rest = arguments
    text = sys.stdin.read() if verb == "create" else ""
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps([*sys.argv[2:], text]) + "\n")
    if (folder / f"fail-{verb}").exists():
        sys.stderr.write(f"Error from server (Forbidden): {verb} is broken\n")
        return 1
    if verb == "create":
        pod = json.loads(text)
        name = f"{pod['metadata']['generateName']}{len(list(folder.glob('astraflow-*')))}"
        (folder / name / "app").mkdir(parents=True)
        sys.stdout.write(f"pod/{name}\n")
    elif verb == "get" and (folder / "reason").exists():
        sys.stdout.write((folder / "reason").read_text())
    elif verb == "delete":
        shutil.rmtree(folder / rest[0].removeprefix("pod/"))
    elif verb == "exec":
        return execute_in_pod(folder, next(word for word in rest if word != "--stdin"), rest)
    return 0


def execute_in_pod(folder: Path, pod: str, arguments: list[str]) -> int:
    """Runs a command; another status than 0 is reported as `kubectl` does."""
    if not (folder / pod).is_dir():
        sys.stderr.write(f'Error from server (NotFound): pods "{pod}" not found\n')
        return 1
    status = execute(folder, [pod, *arguments[arguments.index("--") + 1 :]])
    if status:
        sys.stderr.write(f"command terminated with exit code {status}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
