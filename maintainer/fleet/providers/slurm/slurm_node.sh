#!/bin/sh
# Batch script of every node. Its arguments are the node's program and options. The node replaces the shell, so that it
# receives the signals that Slurm sends to the batch step.
exec "$@"
