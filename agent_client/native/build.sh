#!/bin/sh
# Compile leakline._native in place, for one interpreter:  build.sh [python]
exec "${1:-python3}" "$(dirname "$0")/build.py" "$(dirname "$0")/../leakline"
