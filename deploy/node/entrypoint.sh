#!/bin/sh
# A rollout node in a container, or another role. Told by its arguments, as `join HOST:PORT --pool gpu` or `serve weights
# ...`; a node also by its environment:
#   ASTRAFLOW_ADDRESS     HOST:PORT where the run is joined; when no arguments are given
#   ASTRAFLOW_TOKEN       the join token, from a secret; or
#   ASTRAFLOW_TOKEN_FILE  a file that holds it (default /run/secrets/astraflow-token, if that is there)
#   ASTRAFLOW_KEPT_TOKEN  for `token`: a file; while it is younger than 14 days, no token is minted. Nodes come back under
#                         their names only with the token that they joined with.
#   ASTRAFLOW_EXPIRES_AT  Unix seconds at which the node ends, whatever happens
# The token is never an argument. Signals reach the node: it hands back what it has not finished and says goodbye.
set -eu

default=/run/secrets/astraflow-token

if [ "$#" -eq 0 ]; then
    if [ -z "${ASTRAFLOW_ADDRESS:-}" ]; then
        echo "error: say where to join: ASTRAFLOW_ADDRESS=HOST:PORT, or the arguments join HOST:PORT" >&2
        exit 64
    fi
    set -- join "$ASTRAFLOW_ADDRESS"
fi

if [ "$1" = token ] && [ -s "${ASTRAFLOW_KEPT_TOKEN:-}" ] && [ -n "$(find "$ASTRAFLOW_KEPT_TOKEN" -mtime -14)" ]; then
    exit 0
fi

if [ "$1" = join ] && [ -z "${ASTRAFLOW_TOKEN:-}" ]; then
    file=${ASTRAFLOW_TOKEN_FILE:-$default}
    if [ ! -r "$file" ]; then
        echo "error: no join token: set ASTRAFLOW_TOKEN from a secret, or put it into $file" >&2
        exit 64
    fi
    set -- "$@" --token-file "$file"
fi

if [ -n "${ASTRAFLOW_EXPIRES_AT:-}" ]; then
    left=$((${ASTRAFLOW_EXPIRES_AT%.*} - $(date +%s)))
    if [ "$left" -le 0 ]; then
        echo "error: it is past its time (ASTRAFLOW_EXPIRES_AT=$ASTRAFLOW_EXPIRES_AT)" >&2
        exit 124
    fi
    exec timeout --kill-after=60 "$left" astraflow "$@"
fi
exec astraflow "$@"
