"""Fork server of the sandbox `local`.

It runs inside the isolation, in an interpreter without installed packages: standard library only, and relative imports,
because the folder is copied there without the rest of AstraFlow.
"""
