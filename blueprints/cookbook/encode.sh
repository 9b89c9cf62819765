#!/bin/sh
# Stands in for an encoder: reads the task's input on stdin, reports progress, prints the result.
#   moonswarm worker --queue video --label gpu=true -- ./encode.sh
set -eu
file=$(sed -n 's/.*"file": *"\([^"]*\)".*/\1/p')
for percent in 25 50 75; do
  sleep 1
  curl -sf -o /dev/null "$MOONSWARM_URL/v1/worker/progress" \
    -H "Authorization: Bearer $MOONSWARM_HANDLE" -H 'Content-Type: application/json' \
    -d "{\"text\": \"encoded $percent %\", \"percent\": $percent}" || true
done
printf '{"file": "%s.webm", "seconds": 3}\n' "${file%.*}"
