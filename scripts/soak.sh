#!/usr/bin/env bash
# The long forms of the tests of reliability, again and again until the time is up:
#   scripts/soak.sh 30m
# First every mutant of scripts/mutants is made, and has to be noticed; that is not part of the time.
# Each round kills the daemon at every kill point, kills it more often in the middle of work, fills
# and breaks the disk, sends it what nobody wrote on purpose, and simulates with fresh seeds (from the
# time on, or MOONSWARM_SEED_FROM). Ends non-zero at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}" RUST_BACKTRACE="${RUST_BACKTRACE:-1}"
exec </dev/null

case "${1:-}" in
  *[0-9]s) seconds="${1%s}" ;;
  *[0-9]m) seconds=$((${1%m} * 60)) ;;
  *[0-9]h) seconds=$((${1%h} * 3600)) ;;
  *) echo "say how long: scripts/soak.sh 90s, 30m or 8h" >&2; exit 2 ;;
esac

run() {
  cargo nextest run --release --features faults --no-capture "$@"
}

# Not part of the time: the time is for testing.
cargo build --release --features faults --tests

scripts/mutants.sh

end=$((SECONDS + seconds)) round=0
while ((SECONDS < end)); do
  round=$((round + 1))
  echo "── round $round, $(((end - SECONDS) / 60)) min left"
  MOONSWARM_WALK=all run --test failpoints
  PROPTEST_CASES="${PROPTEST_CASES:-20000}" run --test fuzz
  PROPTEST_CASES="${PROPTEST_CASES:-20000}" run --lib lua::tests::values
  run --test faults
  MOONSWARM_KILLS="${MOONSWARM_KILLS:-500}" MOONSWARM_KILL_RUNS="${MOONSWARM_KILL_RUNS:-400}" run --test kill
  from="${MOONSWARM_SEED_FROM:-$(($(date +%s) * 1000))}"
  echo "── seeds from $from"
  MOONSWARM_SEED_FROM="$from" MOONSWARM_SEEDS="${MOONSWARM_SEEDS:-100000}" run --lib simulation
done
echo "══ $round rounds without a failure"
