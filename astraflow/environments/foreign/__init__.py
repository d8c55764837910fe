"""Environments of other projects by name, each in a process and an interpreter of its own.

`releases.py` lists what can be installed, `installation.py` makes virtual environments on request, `workers.py` starts
processes in them, `bridges/` holds the programs of these processes, which import the other project's package and the
standard library only, and `tasks.py` reads the prompts of an environment.
"""
