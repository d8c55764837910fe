"""`python -m astraflow.cli`."""

from astraflow.cli.main import main

main()
