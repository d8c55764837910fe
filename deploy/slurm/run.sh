#!/usr/bin/env bash
#SBATCH --job-name=astraflow-run
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
# Services and trainer of a run on this host, until the run is complete; see docs/how-to/clusters.md. A batch script of
# Slurm, and a plain script elsewhere:
#
#   sbatch deploy/slurm/run.sh RECIPE DIRECTORY [options of `astraflow run`]
#
# DIRECTORY is on a file system that lasts, with Slurm on one that all hosts share. Nodes find the run by the files
# `address` and `token` in its folder `join`; the token admits nodes for 30 days, and `ended` says that no node is needed. The
# same command continues the run.
#   ASTRAFLOW_HOST       address to listen on (default: the first of this host)
#   ASTRAFLOW_ADVERTISE  name or address at which nodes reach this host, if it differs
#   ASTRAFLOW_PORTS      first of four consecutive ports (default 7000)
#   ASTRAFLOW_POOL       pool of the nodes (default: cluster)
# SIGTERM stops the run. SIGUSR1, which Slurm sends 5 minutes before the time limit, stops it and queues the job again.
set -euo pipefail
umask 077

if [ "$#" -lt 2 ]; then
    echo "error: cannot start a run: no recipe or no directory; give the arguments RECIPE DIRECTORY" >&2
    exit 64
fi
recipe=$1 directory=$2
shift 2
host=${ASTRAFLOW_HOST:-$(hostname -I | cut -d' ' -f1)}
ports=${ASTRAFLOW_PORTS:-7000}
join=$directory/join
mkdir -p "$join"
rm -f "$join/address" "$join/ended"

astraflow run "$recipe" --run-dir "$directory" --headless --nodes 0 --host "$host" \
    --advertise "${ASTRAFLOW_ADVERTISE:-}" --ports "$ports" "$@" &
run=$!
queues_again=
trap 'kill -TERM "$run"' TERM INT
trap 'queues_again=1; kill -TERM "$run"' USR1

# The token contains the hash of the run's authority, so nodes need no certificate. It cannot be created until dataflow listens.
until astraflow token "$host:$((ports + 1))" --token-file "$directory/token" --authority "$directory/authority" \
    --pool "${ASTRAFLOW_POOL:-cluster}" --reusable --hours 720 --out "$join/token" --reason "nodes of a cluster" \
    >"$join/log" 2>&1; do
    [ -d "/proc/$run" ] || break
    sleep 2
done
if [ -d "/proc/$run" ]; then
    echo "${ASTRAFLOW_ADVERTISE:-$host}:$ports" >"$join/address.partial"
    mv "$join/address.partial" "$join/address"
    echo "nodes can join at $(<"$join/address")"
fi

while :; do # a signal ends `wait` early
    wait "$run" && code=0 || code=$?
    [ -d "/proc/$run" ] || break
done
rm -f "$join/address"
if [ -n "$queues_again" ] && [ -n "${SLURM_JOB_ID:-}" ]; then
    exec scontrol requeue "$SLURM_JOB_ID"
fi
touch "$join/ended"
exit "$code"
