"""Programs that run in the interpreters of other projects' packages, started by their path.

They import the standard library, `serving.py` beside them, and the package of their kind; nothing of AstraFlow.
"""
