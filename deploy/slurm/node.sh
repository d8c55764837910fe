#!/usr/bin/env bash
#SBATCH --job-name=astraflow-node
#SBATCH --array=0-3
#SBATCH --gpus-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
# A rollout node of the run in DIRECTORY, until the run is complete; see docs/how-to/clusters.md. A batch script of Slurm,
# where each task of the array is a node, and a plain script elsewhere:
#
#   sbatch deploy/slurm/node.sh DIRECTORY [options of `astraflow join`]
#
#   ASTRAFLOW_WAIT_S  longest wait for the run's address (default 3600)
# SIGTERM, which Slurm sends 2 minutes before the time limit and at a preemption, drains the node. A node without an answer
# of dataflow for 5 minutes reads the address again, because a run that was queued again may be on another host.
set -euo pipefail
umask 077

if [ "$#" -lt 1 ]; then
    echo "error: cannot join: no directory of a run; give the argument DIRECTORY" >&2
    exit 64
fi
join=$1/join
shift
child=
stopped=
trap 'stopped=1; [ -z "$child" ] || kill -TERM "$child"' TERM INT

finished() { # waits for the child; a signal ends `wait` early
    while :; do
        wait "$child" && code=0 || code=$?
        [ -d "/proc/$child" ] || return 0
    done
}

until [ -n "$stopped" ]; do
    last=$((SECONDS + ${ASTRAFLOW_WAIT_S:-3600}))
    until [ -s "$join/address" ] || [ -n "$stopped" ]; do
        if [ "$SECONDS" -ge "$last" ]; then
            echo "error: cannot join: no run wrote $join/address; start deploy/slurm/run.sh with the same directory" >&2
            exit 69
        fi
        sleep 2 &
        child=$!
        finished
        [ ! -e "$join/ended" ] || exit 0
    done
    [ -z "$stopped" ] || break
    astraflow join "$(<"$join/address")" --token-file "$join/token" --dataflow-timeout-s 300 --drain-s 60 "$@" &
    child=$!
    finished
    case $code in
    0 | 2) exit "$code" ;; # the run is complete, or it refuses the node, which another attempt does not change
    esac
    [ -z "$stopped" ] || break
    sleep 2 &
    child=$!
    finished
done
exit 143
