#!/bin/bash
# Writes the reward: 1 when the task is done, else 0.
cd "${APP_DIR:-/app}" || exit 1
logs="${LOGS_DIR:-/logs}/verifier"
mkdir -p "$logs"

is_done() {
    [ "$(cat docs/intro.txt)" = "The color of the sky is not the color of the sea." ] || return 1
    [ "$(cat docs/part/one.txt)" = "Each color has a name; colourful stays." ] || return 1
    [ "$(cat docs/archive/old.txt)" = "An old colour." ]
}

if is_done; then echo 1; else echo 0; fi > "$logs/reward.txt"
