"""Provider `local_process`: one simulated machine, a process with a folder, per node."""
