#!/bin/sh
# The batch script of every node: its arguments are the node's program and options. The shell becomes the node, so that
# what Slurm sends to the batch step reaches it.
exec "$@"
