#!/usr/bin/env bash
# Installs, starts, upgrades, removes and purges a Debian package in a scratch root:
#   scripts/package-test.sh target/release-files/moonswarm_*.deb
# The root is this machine's, under an overlay that is thrown away, so nothing of the machine changes. Needs root
# and dpkg. systemd is not started in it: the unit is checked by systemd-analyze, and the daemon is started as
# the unit does, with a socket for READY, WATCHDOG and STOPPING.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ "${1:-}" != --inside ]]; then
  deb="$(realpath "$1")"
  ((EUID == 0)) || { echo "only root may make a scratch root" >&2; exit 1; }
  room="$(mktemp -d)"
  trap 'umount "$room" 2>/dev/null; rmdir "$room"' EXIT
  mount -t tmpfs -o mode=755 none "$room"
  mkdir "$room"/{upper,work,root}
  # Mounts of the namespace end with it.
  unshare --mount --pid --fork bash -euc '
    room="$1" deb="$2" script="$3"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$room/upper,workdir=$room/work" "$room/root"
    mount -t proc proc "$room/root/proc"
    mount -t tmpfs none "$room/root/run"
    mount -t tmpfs none "$room/root/tmp"
    mount --rbind /dev "$room/root/dev"
    install -m 755 "$script" "$room/root/tmp/package-test"
    install -m 644 "$deb" "$room/root/tmp/first.deb"
    # Services are not started by the package here: there is no systemd.
    printf "#!/bin/sh\nexit 101\n" >"$room/root/usr/sbin/policy-rc.d"
    chmod 755 "$room/root/usr/sbin/policy-rc.d"
    chroot "$room/root" /tmp/package-test --inside
  ' _ "$room" "$deb" "$(realpath "$0")"
  exit
fi

# From here on: within the scratch root.
cd /tmp
fail() { echo "package-test: $*" >&2; exit 1; }
say() { echo "── $*"; }
is_gone() { [[ ! -e "$1" ]] || fail "$1 is still there"; }
dpkg --purge moonswarm >/dev/null 2>&1 || true

# notified WORD: waits until the daemon has sent a word over its socket.
notified() {
  for _ in $(seq 200); do
    grep -q "^$1" /tmp/notified && return
    sleep 0.1
  done
  cat /tmp/notified /tmp/daemon.log >&2
  fail "the daemon has not sent $1"
}

# started: starts the daemon as the unit says, as its user, and waits until it is ready.
started() {
  : >/tmp/notified
  chmod 666 /tmp/notified
  rm -f /run/notify
  python3 -c '
import os, socket
it = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
it.bind("/run/notify")
os.chmod("/run/notify", 0o666)
while True:
    with open("/tmp/notified", "a") as out:
        out.write(it.recv(4096).decode() + "\n")
' &
  hears=$!
  for _ in $(seq 100); do [[ -S /run/notify ]] && break; sleep 0.1; done
  local line
  line="$(sed -n 's/^ExecStart=//p' /lib/systemd/system/moonswarm.service)"
  # shellcheck disable=SC2086
  (cd /var/lib/moonswarm && exec setpriv --reuid=moonswarm --regid=moonswarm --init-groups --no-new-privs \
    env -i PATH=/usr/bin:/bin NOTIFY_SOCKET=/run/notify WATCHDOG_USEC=1000000 MOONSWARM_LISTEN=127.0.0.1:0 \
    $line >/tmp/daemon.log 2>&1) &
  daemon=$!
  notified READY=1
  notified WATCHDOG=1
}

stopped() {
  kill -TERM "$daemon"
  wait "$daemon" || fail "the daemon ended with $?"
  notified STOPPING=1
  kill "$hears"
}

# as_owner WORDS…: the command line of an administrator.
as_owner() { moonswarm --data /var/lib/moonswarm "$@"; }

say "what is in it"
dpkg-deb --info first.deb | sed -n '/Package:/,/Description:/p'
dpkg-deb --contents first.deb | awk '{ print $6 }' >contents
for file in usr/bin/moonswarm lib/systemd/system/moonswarm.service etc/moonswarm/moonswarm.toml etc/default/moonswarm \
  usr/share/man/man1/moonswarm.1.gz usr/share/man/man1/moonswarm-run.1.gz usr/share/bash-completion/completions/moonswarm \
  usr/share/zsh/vendor-completions/_moonswarm usr/share/fish/vendor_completions.d/moonswarm.fish usr/share/doc/moonswarm/copyright; do
  grep -qE "^(\./)?(usr/)?$file\$" contents || fail "$file is not in the package"
done

say "install"
dpkg -i first.deb >install.log 2>&1 || { cat install.log >&2; fail "it cannot be installed"; }
getent passwd moonswarm >/dev/null || fail "there is no user moonswarm"
[[ "$(stat -c '%U %a' /var/lib/moonswarm)" == "moonswarm 700" ]] || fail "the data directory is not the user's"
[[ "$(stat -c '%a' /etc/default/moonswarm)" == 600 ]] || fail "keys can be read by others"
[[ "$(stat -c '%G %a' /etc/moonswarm/moonswarm.toml)" == "moonswarm 640" ]] || fail "the configuration can be read by others"
moonswarm version
man -w moonswarm >/dev/null 2>&1 || [[ -f /usr/share/man/man1/moonswarm.1.gz ]] || fail "there is no manual"
if command -v systemd-analyze >/dev/null; then
  systemd-analyze verify /lib/systemd/system/moonswarm.service >verify.log 2>&1 || { cat verify.log >&2; fail "the unit is wrong"; }
  systemd-analyze security --offline=yes --threshold=40 /lib/systemd/system/moonswarm.service 2>/dev/null | tail -1
  systemd-analyze security --offline=yes --threshold=40 /lib/systemd/system/moonswarm.service >/dev/null 2>&1 ||
    fail "the unit is more exposed than 4.0"
else
  fail "systemd-analyze is not installed: the unit is not checked"
fi

say "start"
cat >/etc/moonswarm/blueprints/hello.lua <<'LUA'
local swarm = require("swarm")
return swarm.blueprint {
  name = "hello", agents = { e = { operator = "echo" }, sh = { operator = "process", command = { "sh", "-c", "id -un" } } },
  flow = function(ctx, input) return { ctx:run("e", input.n), ctx:run("sh", {}) } end,
}
LUA
started
as_owner health
as_owner run hello n=1 --json >run.json
grep -q '"completed"' run.json || { cat run.json >&2; fail "a run with a program does not complete"; }
stopped

say "upgrade"
sed -i 's/^#MOONSWARM_LOG=info/MOONSWARM_LOG=debug/' /etc/default/moonswarm
dpkg-deb --raw-extract first.deb second
sed -i -E 's/^(Version: .*)/\1+next/' second/DEBIAN/control
# A changed conffile of the package meets a changed one of the administrator.
echo '# of the next release' >>second/etc/default/moonswarm
(cd second && find . -type f -not -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb --build second second.deb >/dev/null
dpkg -i --force-confold second.deb >upgrade.log 2>&1 || { cat upgrade.log >&2; fail "it cannot be upgraded"; }
grep -q '^MOONSWARM_LOG=debug' /etc/default/moonswarm || fail "an upgrade has taken the administrator's words back"
started
as_owner ps --json | grep -q '"completed"' || fail "the run is gone after the upgrade"
stopped

say "upgrade without a configuration"
# An administrator may have deleted or opened a file of the configuration: both are respected.
cp -p /etc/default/moonswarm kept
rm /etc/default/moonswarm
chmod 0644 /etc/moonswarm/moonswarm.toml
chmod 0750 /etc/moonswarm/blueprints
dpkg -i --force-confold second.deb >upgrade.log 2>&1 || { cat upgrade.log >&2; fail "it cannot be upgraded without a file"; }
is_gone /etc/default/moonswarm
[[ "$(stat -c '%a' /etc/moonswarm/moonswarm.toml)" == 644 ]] || fail "an upgrade has taken the administrator's mode back"
[[ "$(stat -c '%a' /etc/moonswarm/blueprints)" == 750 ]] || fail "an upgrade has opened the directory of the blueprints"
cp -p kept /etc/default/moonswarm
# A file that dpkg brings back is one that the daemon reads.
rm /etc/moonswarm/moonswarm.toml
dpkg -i --force-confold --force-confmiss second.deb >upgrade.log 2>&1 || { cat upgrade.log >&2; fail "dpkg brings no file back"; }
[[ "$(stat -c '%G %a' /etc/moonswarm/moonswarm.toml)" == "moonswarm 640" ]] || fail "the daemon cannot read the file that dpkg has brought back"

say "remove"
dpkg --remove moonswarm >/dev/null 2>&1
is_gone /usr/bin/moonswarm
[[ -f /var/lib/moonswarm/moonswarm.db ]] || fail "removing took the data"
[[ -f /etc/default/moonswarm ]] || fail "removing took the configuration"

say "purge"
rm /etc/moonswarm/blueprints/hello.lua
dpkg --purge moonswarm >purge.log 2>&1 || { cat purge.log >&2; fail "it cannot be purged"; }
is_gone /var/lib/moonswarm
is_gone /etc/moonswarm
is_gone /etc/default/moonswarm
! getent passwd moonswarm >/dev/null || fail "the user is still there"
! dpkg -s moonswarm >/dev/null 2>&1 || fail "dpkg still knows it"

say "purge where a disk is mounted"
mkdir /var/lib/moonswarm
mount -t tmpfs none /var/lib/moonswarm
dpkg -i first.deb >install.log 2>&1 || { cat install.log >&2; fail "it cannot be installed again"; }
touch /var/lib/moonswarm/moonswarm.db
dpkg --purge moonswarm >purge.log 2>&1 || { cat purge.log >&2; fail "a disk that is mounted keeps it from being purged"; }
is_gone /var/lib/moonswarm/moonswarm.db
! dpkg -s moonswarm >/dev/null 2>&1 || fail "dpkg still knows it after a purge with a disk"
umount /var/lib/moonswarm
say "the package installs, starts, upgrades, is removed and purged"
