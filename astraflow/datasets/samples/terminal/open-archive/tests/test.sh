#!/bin/bash
# Writes the reward: 1 when the task is done, else 0.
cd "${APP_DIR:-/app}" || exit 1
logs="${LOGS_DIR:-/logs}/verifier"
mkdir -p "$logs"

is_done() {
    [ "$(cat code.txt)" = heron-4417 ]
}

if is_done; then echo 1; else echo 0; fi > "$logs/reward.txt"
