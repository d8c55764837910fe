#!/bin/bash
# Writes the reward 1 when the file of the step exists, else 0.
read -r expected < "$(dirname "$0")/expected"
logs="${LOGS_DIR:-/logs}/verifier"
mkdir -p "$logs"
if [ -e "${APP_DIR:-/app}/$expected" ]; then echo 1; else echo 0; fi > "$logs/reward.txt"
