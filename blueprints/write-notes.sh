#!/bin/sh
# A worker's command: the task's input is JSON on stdin, the result is JSON on stdout.
set -eu
version=$(sed -n 's/.*"version": *"\([^"]*\)".*/\1/p')
printf '{"text": "Release %s"}\n' "$version"
