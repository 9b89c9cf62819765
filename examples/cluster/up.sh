#!/bin/sh
# Three nodes over one PostgreSQL database, with HAProxy in front, on this machine.
#
#   examples/cluster/up.sh [DIR]        # until Ctrl-C; everything is below DIR (default: ./cluster-demo)
#
# Needs `moonswarm` in the PATH (or MOONSWARM=FILE), PostgreSQL 15 or newer, and HAProxy. The ports are
# 7700 (HAProxy), 7711 to 7713 (the nodes) and 7790 (PostgreSQL), all of 127.0.0.1.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=${MOONSWARM:-moonswarm}
dir=${1:-cluster-demo}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
binaries=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
PATH=${binaries:+$binaries:}$PATH
for tool in "$program" initdb pg_ctl haproxy; do
  command -v "$tool" >/dev/null || { echo "$tool is missing" >&2; exit 1; }
done

# PostgreSQL refuses to run as root.
as() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- env PATH="$PATH" "$@"; else "$@"; fi; }
mkdir -p "$dir/database"
if [ "$(id -u)" = 0 ]; then chmod 755 "$dir"; chown postgres "$dir/database"; fi
cd /
if [ ! -e "$dir/database/PG_VERSION" ]; then
  as initdb -D "$dir/database" -U moonswarm -E UTF8 --locale=C --auth=trust >/dev/null
fi
as pg_ctl -D "$dir/database" -w -l "$dir/database/log" \
  -o "-c listen_addresses=127.0.0.1 -c port=7790 -c unix_socket_directories=$dir/database" start >/dev/null
as psql -q -h "$dir/database" -p 7790 -U moonswarm -d postgres -c 'CREATE DATABASE moonswarm' 2>/dev/null || true

[ -e "$dir/cluster.key" ] || "$program" cluster key --out "$dir/cluster.key"

children=
stop() {
  trap - INT TERM EXIT
  for child in $children; do kill "$child" 2>/dev/null || true; done
  for child in $children; do wait "$child" 2>/dev/null || true; done
  as pg_ctl -D "$dir/database" -m fast -w stop >/dev/null
}
trap stop INT TERM EXIT

node() {
  MOONSWARM_STORE=postgres://moonswarm@127.0.0.1:7790/moonswarm MOONSWARM_CLUSTER_KEY=$dir/cluster.key \
    "$program" serve --config "$here/moonswarm.toml" --data "$dir/$1" --node "$1" \
    --listen "127.0.0.1:$2" >>"$dir/$1.log" 2>&1 &
  children="$children $!"
  echo "$!" >"$dir/$1.pid"
}
node one 7711
node two 7712
node three 7713
haproxy -db -f "$here/haproxy.cfg" >>"$dir/haproxy.log" 2>&1 &
children="$children $!"

until "$program" health --data "$dir/one" >/dev/null 2>&1 && [ -s "$dir/one/admin.token" ]; do sleep 0.2; done
cat <<END
three nodes behind http://127.0.0.1:7700; the token: cat $dir/one/admin.token

  $program nodes --server http://127.0.0.1:7700 --token-file $dir/one/admin.token
  kill -9 \$(cat $dir/one.pid)      # and list the nodes again: another one has the runs
END
wait
