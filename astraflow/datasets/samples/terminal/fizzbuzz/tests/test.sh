#!/bin/bash
# Writes the reward: 1 when the task is done, else 0.
cd "${APP_DIR:-/app}" || exit 1
logs="${LOGS_DIR:-/logs}/verifier"
mkdir -p "$logs"

is_done() {
    [ "$(bash fizzbuzz.sh 5)" = "$(printf '1\n2\nfizz\n4\nbuzz')" ] || return 1
    [ "$(bash fizzbuzz.sh 300 | grep -c '^fizzbuzz$')" -eq 20 ] || return 1
    [ "$(bash fizzbuzz.sh 98 | tail -n 1)" = 98 ]
}

if is_done; then echo 1; else echo 0; fi > "$logs/reward.txt"
