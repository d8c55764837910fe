"""Checks the guarantees of docs/how-to/deploy.md and upgrade.md for docker-compose.yml; each step ends with a figure or
raises `CheckFailed`.

Each step leaves the run learning. The ledger of every report must balance, and no count may decrease.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.containers.engine import SOURCE
from tests.containers.stack import CheckFailed, Container, Json, Stack, until

UPGRADE = SOURCE / "docs/how-to/upgrade.md"
MORE_STEPS = 5
"""Additional trainer steps after which a run counts as learning."""

LONG_RUNNING = ("dataflow", "fleet", "trainer", "weights", "web")

DRAIN = """
import asyncio, os, sys
from pathlib import Path
from astraflow.client.connect import connect_control

async def drain():
    token = Path(os.environ["ASTRAFLOW_TOKEN_FILE"]).read_text().strip()
    async with connect_control("dataflow:7001", token, authority=Path(os.environ["ASTRAFLOW_AUTHORITY"])) as control:
        await control.drain_node(sys.argv[1], actor="check", reason="a check of the containers")

asyncio.run(drain())
"""
"""Python code for dataflow's container: requests the drain of a node, as the page does."""


@dataclass(kw_only=True)
class Checks:
    """Steps and their observations. say: called with each figure."""

    stack: Stack
    say: Callable[[str], None]
    steps: int = 0
    issued: int = 0
    reports: int = 0
    kills: int = 0
    figures: list[str] = field(default_factory=list)

    def run(self) -> str:
        """Runs all steps in order. Returns the figures in one line. Raises: CheckFailed, CommandFailed, NotStarted."""
        for step in (
            self.start,
            self.share_memory,
            self.hide_run_token,
            self.add_maintainer,
            self.kill_services,
            self.drain_node,
            self.restart_engine,
            self.kill_the_host,
            self.stop_and_start,
            self.share_memory,
            self.restore_backup,
            self.remove_all,
        ):
            began = time.monotonic()
            figure = step()
            self.say(f"{step.__name__}: {figure} ({time.monotonic() - began:.0f} s)")
        faults = f"{self.kills} kills, an engine restart and a power loss"
        return f"{self.steps} steps with {faults}; {self.reports} reports balanced, 0 steps lost"

    def start(self) -> str:
        """`up` makes every service healthy, every node joins, and the trainer makes steps."""
        seconds = self.stack.up()
        self.until_learning(nodes=self.stack.nodes)
        for service in ("keys", "prepare", "tokens"):
            code = self.stack.only(service).exit_code
            require(code == 0, f"{service} ended with code {code}")
        return f"`up` took {seconds:.0f} s; {self.stack.nodes} nodes are ready, step {self.steps}"

    def share_memory(self) -> str:
        """Nodes on this host map weights from shared memory; no weight bytes are transferred."""
        links = [link for node in ready(self.read()) for link in node["links"]]
        fetched = sum(link["full_bytes"] + link["delta_bytes"] for link in links)
        mapped = sum(link["shared_bytes"] for link in links)
        require(fetched == 0, f"nodes fetched {fetched} B of weights that they could map")
        require(mapped > 0, "nodes have mapped no weights")
        return f"nodes mapped {mapped / 1e6:.0f} MB of weights and fetched 0 B"

    def hide_run_token(self) -> str:
        """A node's container holds a token that admits nodes of its pool, not the run token."""
        container = self.stack.containers("node")[0]
        token = (self.stack.engine.state / "run-token").read_text().strip()
        search = ["grep", "-rlsF", token, "/run", "/tmp", "/home", "/proc/1/environ", "/proc/self/environ"]  # noqa: S108
        done = self.stack.engine.run("docker", "exec", container.id, *search, is_checked=False)
        require(not done.stdout.strip(), f"the run token is in a node's container: {done.stdout}")
        listed = self.stack.astraflow("dataflow", "token", "dataflow:7001", "--list", "--json")
        require(token not in listed and '"compose"' in listed, f"no pool token is listed: {listed}")
        return "no node holds the run token"

    def add_maintainer(self) -> str:
        """A later `up` with the maintainer leaves the nodes alone."""
        before = {container.id for container in self.stack.containers("node")}
        self.stack.profiles = "maintainer"
        self.stack.up()
        after = {container.id for container in self.stack.containers("node")}
        require(after == before, f"`up` changed the nodes: {len(before)} before, {len(after)} after")
        until(lambda: self.stack.only("maintainer").state == "running", "the maintainer runs")
        return f"{len(after)} nodes as before, beside the maintainer"

    def kill_services(self) -> str:
        """Node, dataflow, weight store and trainer restart after SIGKILL, and the run continues."""
        took = []
        for service in ("node", "dataflow", "weights", "trainer"):
            container = self.stack.containers(service)[0]
            self.stack.kill(container)
            self.kills += 1
            self.until_restarted(container)
            took.append(f"{service} {self.until_learning(nodes=self.stack.nodes):.0f} s")
        return f"learning again with {self.stack.nodes} nodes after " + ", ".join(took)

    def drain_node(self) -> str:
        """A node drained on request exits with code 0 and is not restarted."""
        node = ready(self.read())[0]["id"]
        self.stack.compose("exec", "-T", "dataflow", "python3", "-c", DRAIN, node)
        until(lambda: len(self.down("node")) == 1, f"the node {node} has ended")
        (container,) = self.down("node")
        require(container.exit_code == 0, f"the drained node ended with code {container.exit_code}")
        self.until_learning(nodes=self.stack.nodes - 1)
        require([node.id for node in self.down("node")] == [container.id], "the drained node came back")
        return "a drained node ended with code 0 and stayed away"

    def restart_engine(self) -> str:
        """After a clean engine restart all running containers restart; the drained node does not."""
        drained = {container.id for container in self.down("node")}
        stopping_s = self.stack.engine.stop_daemon()
        self.stack.engine.start_daemon()
        seconds = self.until_learning(nodes=self.stack.nodes - 1)
        self.require_running()
        require({node.id for node in self.down("node")} == drained, "not exactly the drained node stayed away")
        return f"the engine stopped in {stopping_s:.0f} s; learning again {seconds:.0f} s after its start"

    def kill_the_host(self) -> str:
        """After all processes, including the engine, are killed, the next engine start restores the run."""
        self.stack.engine.cut()
        self.stack.engine.start()
        seconds = self.until_learning(nodes=self.stack.nodes - 1)
        self.require_running()
        return f"learning again after {seconds:.0f} s"

    def stop_and_start(self) -> str:
        """`stop` ends every service within its grace period; `down` and `up` resume the run with all nodes."""
        began = time.monotonic()
        self.stack.compose("stop")
        stopping_s = time.monotonic() - began
        codes = {container.service: container.exit_code for container in self.stack.containers()}
        killed = [service for service, code in codes.items() if code not in (0, 143)]
        require(not killed, f"these did not end in time: {killed}, of {codes}")
        self.stack.compose("down")
        self.stack.up()
        seconds = self.until_learning(nodes=self.stack.nodes)
        return f"`stop` took {stopping_s:.0f} s; learning again {seconds:.0f} s after `down` and `up`"

    def restore_backup(self) -> str:
        """The commands of docs/how-to/upgrade.md save all volumes, and restore them after `down --volumes`."""
        save, restore = backup_commands()
        began = time.monotonic()
        self.stack.shell(save)
        saving_s = time.monotonic() - began
        self.stack.shell(restore)
        seconds = self.until_learning(nodes=self.stack.nodes)
        return f"stop, backup and `up` took {saving_s:.0f} s; learning {seconds:.0f} s after the restore"

    def remove_all(self) -> str:
        """`down` for all profiles removes all containers, also that of a profile that is not set any more."""
        self.stack.profiles = ""
        self.stack.compose("--profile", "*", "down", "--volumes")
        left = self.stack.engine.output("docker", "ps", "--all", "--quiet").split()
        require(not left, f"`down` left {len(left)} containers")
        return "`down` left no container"

    def until_learning(self, *, nodes: int) -> float:
        """Waits for `nodes` ready nodes and for more trainer steps. Returns seconds. Raises: CheckFailed."""
        goal = self.steps + MORE_STEPS

        def holds() -> bool:
            report = self.read()
            return self.steps >= goal and len(ready(report)) >= nodes

        return until(holds, f"step {goal} with {nodes} nodes")

    def until_restarted(self, container: Container) -> None:
        """Waits until the engine has restarted a container. Raises: CheckFailed."""
        until(lambda: self.stack.restarts(container) > 0, f"{container.service} is started again")

    def down(self, service: str) -> list[Container]:
        """Returns the containers of a service that do not run."""
        return [container for container in self.stack.containers(service) if container.state != "running"]

    def require_running(self) -> None:
        """Raises: CheckFailed when a service does not run."""
        missing = [service for service in (*LONG_RUNNING, "maintainer") if self.down(service)]
        require(not missing, f"these do not run: {missing}")

    def read(self) -> Json:
        """Returns the run's report, whose ledger must balance. Raises: CheckFailed."""
        report = self.stack.report()
        steps, issued = balanced(report)
        require(steps >= self.steps, f"{self.steps} steps were acknowledged, {steps} are reported")
        require(issued >= self.issued, f"{self.issued} groups were issued, {issued} are reported")
        self.steps, self.issued = steps, issued
        self.reports += 1
        return report


def backup_commands() -> tuple[str, str]:
    """Returns the documented commands for a backup and for its restore, with the backup in the shared folder."""
    save, restore, *_ = re.findall(r"^```\n(.*?)^```", UPGRADE.read_text(), flags=re.M | re.S)
    return save.replace("$PWD/", "/state/"), restore.replace("$PWD/", "/state/")


def balanced(report: Json) -> tuple[int, int]:
    """Returns trainer steps and issued groups of a report whose counts add up. Raises: CheckFailed."""
    for flow in report["flows"]:
        places = flow["open"] + flow["admitted"] + sum(flow["dropped"].values())
        require(flow["issued"] == places, f"the groups of the flow {flow['id']!r} do not add up: {flow}")
    for stream in report["streams"]:
        groups, steps = stream["groups"], stream["training"]["steps"]
        places = groups["buffered"] + groups["in_batch"] + groups["trained"] + sum(groups["dropped"].values())
        require(groups["admitted"] == places, f"the groups of {stream['policy']!r} do not add up: {stream}")
        trained = steps * stream["batch_groups"]
        require(groups["trained"] == trained, f"{groups['trained']} groups in {steps} steps: {stream}")
    steps_done = sum(stream["training"]["steps"] for stream in report["streams"])
    return steps_done, sum(flow["issued"] for flow in report["flows"])


def ready(report: Json) -> list[Json]:
    """Returns the ready nodes."""
    return [node for node in report["nodes"] if node["state"] == "ready"]


def require(holds: bool, message: str) -> None:
    """Raises: CheckFailed unless the condition holds."""
    if not holds:
        raise CheckFailed(message)
