#!/bin/sh
# Starts a rollout node, or another role, in a container. Arguments: those of astraflow, as in `join HOST:PORT --pool gpu` or
# `serve weights ...`. Environment of a node:
#   ASTRAFLOW_ADDRESS     HOST:PORT for joining the run, used without arguments
#   ASTRAFLOW_TOKEN       join token, from a secret; or
#   ASTRAFLOW_TOKEN_FILE  file with the join token (default /run/secrets/astraflow-token)
#   ASTRAFLOW_EXISTING_TOKEN_FILE
#                         for `token`: a token file; no token is created while it is younger than 14 days. Nodes rejoin under
#                         their names only with the token that they joined with.
#   ASTRAFLOW_EXPIRES_AT  Unix seconds at which the node is terminated
# The token is never an argument. Signals reach the node, which hands back unfinished tasks and leaves.
set -eu

default=/run/secrets/astraflow-token

if [ "$#" -eq 0 ]; then
    if [ -z "${ASTRAFLOW_ADDRESS:-}" ]; then
        echo "error: cannot join: no address; set ASTRAFLOW_ADDRESS=HOST:PORT, or give the arguments join HOST:PORT" >&2
        exit 64
    fi
    set -- join "$ASTRAFLOW_ADDRESS"
fi

if [ "$1" = token ] && [ -s "${ASTRAFLOW_EXISTING_TOKEN_FILE:-}" ] && [ -n "$(find "$ASTRAFLOW_EXISTING_TOKEN_FILE" -mtime -14)" ]; then
    exit 0
fi

if [ "$1" = join ] && [ -z "${ASTRAFLOW_TOKEN:-}" ]; then
    file=${ASTRAFLOW_TOKEN_FILE:-$default}
    if [ ! -r "$file" ]; then
        echo "error: cannot join: no join token; set ASTRAFLOW_TOKEN from a secret, or write it to $file" >&2
        exit 64
    fi
    set -- "$@" --token-file "$file"
fi

if [ -n "${ASTRAFLOW_EXPIRES_AT:-}" ]; then
    left=$((${ASTRAFLOW_EXPIRES_AT%.*} - $(date +%s)))
    if [ "$left" -le 0 ]; then
        echo "error: cannot start: ASTRAFLOW_EXPIRES_AT=$ASTRAFLOW_EXPIRES_AT has passed; launch a new node" >&2
        exit 124
    fi
    exec timeout --kill-after=60 "$left" astraflow "$@"
fi
exec astraflow "$@"
