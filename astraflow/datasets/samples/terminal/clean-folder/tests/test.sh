#!/bin/bash
# Writes the reward: 1 when the task is done, else 0.
cd "${APP_DIR:-/app}" || exit 1
logs="${LOGS_DIR:-/logs}/verifier"
mkdir -p "$logs"

is_done() {
    [ "$(find build | sort)" = "$(printf 'build\nbuild/a.o\nbuild/lib\nbuild/lib/b.o\nbuild/lib/b.tmp.o')" ]
}

if is_done; then echo 1; else echo 0; fi > "$logs/reward.txt"
