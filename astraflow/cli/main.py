"""The `astraflow` command."""

import os
import sys
from typing import Annotated

import typer

from astraflow.cli.audit_group import audit, login_link
from astraflow.cli.evaluate import evaluate
from astraflow.cli.fleet_group import fleet
from astraflow.cli.health import health
from astraflow.cli.inspect import doctor, recipes, report, view
from astraflow.cli.keys import keys
from astraflow.cli.maintainer import maintainer
from astraflow.cli.mcp import mcp
from astraflow.cli.run import demo, prepare, run
from astraflow.cli.runs_group import runs
from astraflow.cli.serve import join, serve
from astraflow.cli.simulate import simulate
from astraflow.cli.steer import plugins
from astraflow.cli.tokens import token
from astraflow.contract.errors import AstraFlowError

app = typer.Typer(
    help="Reinforcement learning for LLM agents: rollout nodes, dataflow and trainers as services.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # an error people can act on is a sentence (below); a defect shows all of itself
    add_completion=False,
)
app.command()(demo)
app.command()(run)
app.command()(join)
app.command()(token)
app.command()(keys)
app.command()(login_link)
app.command()(report)
app.command()(view)
app.command()(evaluate)
app.command()(plugins)
app.command()(simulate)
app.command()(recipes)
app.command()(health)
app.command()(doctor)
app.command()(prepare)
app.command()(mcp)
app.add_typer(serve, name="serve")
app.add_typer(maintainer, name="maintainer")
app.add_typer(fleet, name="fleet")
app.add_typer(runs, name="runs")
app.add_typer(audit, name="audit")


@app.callback()
def set_options(
    verbose: Annotated[bool, typer.Option("--verbose", help="print errors with their traceback")] = False,
) -> None:
    """Reinforcement learning for LLM agents: rollout nodes, dataflow and trainers as services."""
    if verbose:
        os.environ["ASTRAFLOW_VERBOSE"] = "1"


def main() -> None:
    """Run the command line. What people can act on ends as one sentence and a code that is not 0."""
    # Read when gRPC is imported. Its fork handlers crash children of an event loop now and then, between fork and exec
    # (signal 11, seen in one start of twenty); children here only exec, so they need no handlers.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    # gRPC's own remarks (a port in use, a child started beside its threads) are said again below, in sentences.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app()
    except AstraFlowError as problem:
        fail(problem)
    except OSError as problem:
        from astraflow.cli.rundir import explained

        fail(explained(problem, problem.filename or "a file"))


def fail(problem: AstraFlowError) -> None:
    """End the process with one line that has the message and the code of `problem`."""
    from astraflow.runtime.service import exit_code, print_error

    print_error(problem)
    sys.exit(exit_code(problem))


if __name__ == "__main__":
    main()
