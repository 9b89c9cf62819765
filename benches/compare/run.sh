#!/usr/bin/env bash
# Compares one daemon over PostgreSQL with DBOS, Absurd and Restate on this machine, one after the other:
# runs of ten steps, 64 at a time, for some seconds each.
#   benches/compare/run.sh [--moonswarm FILE] [--seconds N] [--rounds N] [--only "dbos restate"]
# It needs PostgreSQL's binaries, python3 with venv, and npm. What it installs and stores is below
# target/compare; nothing else is changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/benches/compare work=${COMPARE_DIR:-$PWD/target/compare} moonswarm=target/release/moonswarm seconds=10 rounds=1
only="moonswarm dbos absurd restate"
while (($#)); do
  case "$1" in
    --moonswarm) moonswarm=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    *) echo "unknown option $1; the head of this file says what there is" >&2; exit 2 ;;
  esac
done
[ -x "$moonswarm" ] || { echo "$moonswarm is not there: cargo build --release, or name it with --moonswarm" >&2; exit 2; }
moonswarm=$(realpath "$moonswarm")
mkdir -p "$work"

[ -x "$work/venv/bin/absurdctl" ] || {
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" -q install dbos absurd-sdk absurdctl
}
[ -d "$work/node/node_modules/@restatedev/restate-server" ] || {
  mkdir -p "$work/node"
  (cd "$work/node" && npm init -y >/dev/null && npm install --silent @restatedev/restate-server @restatedev/restate-sdk)
}

pg=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1 || true)
pg=${pg:-$(dirname "$(command -v initdb)")}
as() { if [ "$(id -u)" = 0 ]; then (cd / && runuser -u postgres -- "$@"); else "$@"; fi; }
scratch=$(mktemp -d) pids=()
stop() {
  for pid in ${pids[@]+"${pids[@]}"}; do kill "$pid" 2>/dev/null || true; done
  [ -d "$scratch/db" ] && as "$pg/pg_ctl" -D "$scratch/db" -m fast -w stop >/dev/null 2>&1 || true
  rm -rf "$scratch"
}
trap stop EXIT
[ "$(id -u)" = 0 ] && chown postgres "$scratch"
chmod 755 "$scratch"
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
db=$(port)
as "$pg/initdb" -D "$scratch/db" -U bench --auth=trust -E UTF8 --locale=C >/dev/null
as "$pg/pg_ctl" -D "$scratch/db" -w -l "$scratch/db/log" \
  -o "-c port=$db -c listen_addresses=127.0.0.1 -c unix_socket_directories=$scratch -c max_connections=300" start >/dev/null
sql() { as "$pg/psql" -X -q -A -t -h "$scratch" -p "$db" -U bench -d "${2:-postgres}" -c "$1"; }
fresh() { sql "DROP DATABASE IF EXISTS $1 WITH (FORCE)" 2>/dev/null; sql "CREATE DATABASE $1"; }
wait_for() { for _ in $(seq 1 600); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done; echo "in vain: $*" >&2; exit 1; }

of_moonswarm() {
  fresh moonswarm
  local data=$scratch/moonswarm at; at=$(port)
  MOONSWARM_STORE="postgres://bench@127.0.0.1:$db/moonswarm" "$moonswarm" serve --data "$data" \
    --listen "127.0.0.1:$at" --log error >/dev/null 2>"$scratch/moonswarm.log" &
  pids+=($!); local pid=$!
  wait_for curl -sf "http://127.0.0.1:$at/readyz"
  node "$here/drive.mjs" moonswarm "http://127.0.0.1:$at" "$(cat "$data/admin.token")" 64 "$seconds"
  node "$here/drive.mjs" moonswarm-alone "http://127.0.0.1:$at" "$(cat "$data/admin.token")" 1 "$seconds"
  kill "$pid"; wait "$pid" 2>/dev/null || true
  rm -rf "$data"
}
of_dbos() {
  fresh dbos
  "$work/venv/bin/python" "$here/dbos_bench.py" "postgresql://bench@127.0.0.1:$db/dbos" 64 "$seconds" 2>"$scratch/dbos.log"
}
of_absurd() {
  fresh absurd
  export ABSURD_DATABASE_URL="postgresql://bench@127.0.0.1:$db/absurd"
  PATH="$pg:$PATH" "$work/venv/bin/absurdctl" init >/dev/null
  PATH="$pg:$PATH" "$work/venv/bin/absurdctl" create-queue bench >/dev/null
  "$work/venv/bin/python" "$here/absurd_bench.py" "$ABSURD_DATABASE_URL" 64 "$seconds" 2>"$scratch/absurd.log"
}
of_restate() {
  local ingress admin node service; ingress=$(port) admin=$(port) node=$(port) service=$(port)
  (cd "$work/node" && RESTATE_DEFAULT_NUM_PARTITIONS=4 RESTATE_BASE_DIR="$scratch/restate" RESTATE_LOG_FILTER=error DO_NOT_TRACK=1 \
    RESTATE_INGRESS__BIND_ADDRESS="127.0.0.1:$ingress" RESTATE_ADMIN__BIND_ADDRESS="127.0.0.1:$admin" \
    RESTATE_BIND_ADDRESS="127.0.0.1:$node" RESTATE_ADVERTISED_ADDRESS="http://127.0.0.1:$node" \
    exec "$work"/node/node_modules/@restatedev/restate-server-linux-*/bin/restate-server >"$scratch/restate.log" 2>&1) &
  pids+=($!); local server=$!
  cp "$here/restate_service.mjs" "$work/node/"
  (cd "$work/node" && exec node restate_service.mjs "$service" >"$scratch/service.log" 2>&1) &
  pids+=($!); local served=$!
  wait_for curl -sf "http://127.0.0.1:$admin/health"
  wait_for curl -sf "http://127.0.0.1:$admin/deployments" -H 'content-type: application/json' \
    -d "{\"uri\":\"http://127.0.0.1:$service\"}"
  wait_for curl -sf -m 5 "http://127.0.0.1:$ingress/bench/run" -H 'content-type: application/json' -d '{"steps":1}'
  node "$here/drive.mjs" restate "http://127.0.0.1:$ingress" - 64 "$seconds"
  kill "$server" "$served"; wait "$server" "$served" 2>/dev/null || true
  rm -rf "$scratch/restate"
}

echo "PostgreSQL $(sql 'SHOW server_version'), fsync $(sql 'SHOW fsync'), $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg)"
"$work/venv/bin/pip" list 2>/dev/null | grep -Ei '^(dbos|absurd-sdk) ' || true
grep -m1 '"version"' "$work/node/node_modules/@restatedev/restate-server/package.json" | sed 's/.*: /restate-server /'
for round in $(seq 1 "$rounds"); do
  echo "round $round: system, at a time, runs/s, p50 ms, p99 ms"
  for system in $only; do
    "of_$system" || { tail -n 20 "$scratch/$system.log" >&2 || true; echo "$system failed"; }
  done
done
