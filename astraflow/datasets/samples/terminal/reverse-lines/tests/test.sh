#!/bin/bash
# Writes the reward: 1 when the task is done, else 0.
cd "${APP_DIR:-/app}" || exit 1
logs="${LOGS_DIR:-/logs}/verifier"
mkdir -p "$logs"

is_done() {
    [ "$(printf 'a\nb c\n\nd\n' | bash reverse.sh)" = "$(printf 'd\n\nb c\na')" ] || return 1
    [ "$(seq 40 | bash reverse.sh)" = "$(seq 40 -1 1)" ]
}

if is_done; then echo 1; else echo 0; fi > "$logs/reward.txt"
