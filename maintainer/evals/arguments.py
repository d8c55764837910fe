"""Arguments of `python -m maintainer eval`. Every command of the process parses them, so imports are light."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all arguments except the configuration."""
    parser.add_argument("--model", default="", help="name of a model of the Messages API, instead of a configuration")
    parser.add_argument("--kind", default="messages_api", help="kind of --model: messages_api or chat_completions")
    parser.add_argument("--base-url", default="", help="alternative URL of the service of --model")
    parser.add_argument(
        "--prices", default="", metavar="IN,OUT", help="prices of --model, US dollars per million tokens"
    )
    parser.add_argument("--simulated", action="store_true", help="mark the results as simulated")
    parser.add_argument("--case", action="append", default=[], help="case to run, repeatable; default: all")
    parser.add_argument("--seeds", type=int, help="number of held-out seeds; default: all")
    parser.add_argument("--tuning", action="store_true", help="use the tuning seeds instead")
    parser.add_argument("--encounters", type=int, help="number of encounters with a random adversary; default: 200")
    parser.add_argument("--usd-max", type=float, help="budget per model, US dollars; results so far are written")
    parser.add_argument("--minutes-max", type=float, help="time budget per model, minutes")
    parser.add_argument(
        "--output", type=Path, default=Path("leaderboard.json"), help="JSON file; a Markdown file is written beside it"
    )
