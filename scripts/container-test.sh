#!/usr/bin/env bash
# Starts the files of the container image as its user, with nothing else around them:
#   scripts/container-test.sh target/container/root
# Needs root, for chroot. Asks for its health as the image does, and stops it.
set -euo pipefail
root="$1"
as=(env -i MOONSWARM_DATA=/data MOONSWARM_LISTEN=0.0.0.0:0 MOONSWARM_INSECURE=true "$(command -v chroot)" --userspec=65532:65532 "$root" /usr/bin/moonswarm)
# In the image it is a volume.
install -d -o 65532 -g 65532 -m 0700 "$root/data"
trap '[[ -z "${daemon:-}" ]] || kill "$daemon"; rm -rf "${root:?}/data"' EXIT
daemon=""
"${as[@]}" version
if "${as[@]}" health --within 1s 2>/dev/null; then
  echo "it is healthy before it was started" >&2
  exit 1
fi
"${as[@]}" serve 2>"$root/data/log" &
daemon=$!
for _ in $(seq 100); do
  "${as[@]}" health >/dev/null 2>&1 && break
  kill -0 "$daemon" || { cat "$root/data/log" >&2; exit 1; }
  sleep 0.1
done
"${as[@]}" health
kill -TERM "$daemon"
wait "$daemon"
daemon=""
echo "the image starts, is healthy, and stops"
