#!/bin/bash
# Writes the reward: 1 when the task is done, else 0.
cd "${APP_DIR:-/app}" || exit 1
logs="${LOGS_DIR:-/logs}/verifier"
mkdir -p "$logs"

is_done() {
    [ "$(cat docs/intro.txt)" = "This is the begin of the guide." ] || return 1
    [ "$(cat docs/part/one.txt)" = "See the index; tehran stays." ] || return 1
    [ "$(cat docs/archive/old.txt)" = "teh old text" ]
}

if is_done; then echo 1; else echo 0; fi > "$logs/reward.txt"
