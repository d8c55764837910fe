"""Installation of server programs, each release in a virtual environment of its own.

`releases.py` lists what can be installed, `host.py` decides whether a machine can run it, `installer.py` makes and
removes environments with pip (`pip.py`), and `verification.py` checks that a server of an environment answers.
"""
