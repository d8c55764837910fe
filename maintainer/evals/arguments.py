"""What `python -m maintainer eval` takes: read by every command of the process, so nothing heavy is imported here."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All but the configuration."""
    parser.add_argument("--model", default="", help="name of one behind the Messages API, in place of a configuration")
    parser.add_argument("--kind", default="messages_api", help="of --model: messages_api or chat_completions")
    parser.add_argument("--base-url", default="", help="of --model: another address of the service")
    parser.add_argument("--prices", default="", metavar="IN,OUT", help="of --model: US dollars for a million tokens")
    parser.add_argument("--stand-in", action="store_true", help="what answers is no model: the board says so")
    parser.add_argument("--case", action="append", default=[], help="one case; all by default")
    parser.add_argument("--seeds", type=int, help="how many of the held-out seeds; all by default")
    parser.add_argument("--tuning", action="store_true", help="the seeds that may be looked at while tuning, instead")
    parser.add_argument("--encounters", type=int, help="short ones, with a model that calls by chance; 200 by default")
    parser.add_argument("--usd-max", type=float, help="of each model: then it ends, and what was played is written")
    parser.add_argument("--minutes-max", type=float, help="the same for time")
    parser.add_argument("--output", type=Path, default=Path("leaderboard.json"), help="JSON; tables beside it")
