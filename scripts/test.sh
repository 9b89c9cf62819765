#!/usr/bin/env bash
# Checks everything that this repository promises:
#   scripts/test.sh         lints, documentation, every test, the examples
#   scripts/test.sh full    the same, the gates of speed of a release, the long suites, mutants
# Needs Rust and a C++ compiler; what else is missing is installed (Debian packages by root, or by
# sudo without a password; npm and Python packages below target/), or named at the end as not run.
# With MOONSWARM_REQUIRE_TOOLS=1 a tool that is missing is a failure. Ends non-zero when anything
# failed. The plain form builds one profile: what clippy has read the tests do not read again.
set -u
case "${1:-}" in
  "") full=false ;;
  full) full=true ;;
  *) echo "unknown word $1; the head of this file says what there is" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}" RUST_BACKTRACE="${RUST_BACKTRACE:-1}"
exec </dev/null
# From nothing, a build takes a sixth less time without the notes that the next build would use. Where
# there are such notes, somebody works on the code.
[[ -d "${CARGO_TARGET_DIR:-target}/debug/incremental" ]] || export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"

passed=0 failed=0 failures=() skipped=() spent=()
scratch="$(mktemp -d)"
beside=
trap '[[ -z "$beside" ]] || kill -- "-$beside" 2>/dev/null; rm -rf "$scratch"' EXIT

# step NAME COMMAND…: runs a check, and goes on after a failure so that one look shows them all.
step() {
  local name="$1" begin=$SECONDS
  shift
  echo "── $name"
  if "$@"; then
    passed=$((passed + 1))
    echo "── $name: ok ($((SECONDS - begin)) s)"
    spent+=("$((SECONDS - begin)) $name")
  else
    spent+=("$((SECONDS - begin)) $name")
    failed=$((failed + 1))
    failures+=("$name")
    echo "── $name: FAILED ($((SECONDS - begin)) s)"
  fi
}

skip() {
  skipped+=("$1: $2")
  echo "── $1: not run, $2"
  if [[ "${MOONSWARM_REQUIRE_TOOLS:-}" == 1 ]]; then
    failed=$((failed + 1))
    failures+=("$1: $2")
  fi
}

# beside_these FUNCTION: runs the steps of the function, which have build directories of their own, while
# the next ones keep one processor busy; meet waits for it and takes its output and its sums over.
beside_these() {
  set -m
  {
    renice -n 10 "$BASHPID" >/dev/null 2>&1
    passed=0 failed=0 failures=() skipped=() spent=() tests_passed=0 tests_failed=0
    "$1"
    {
      echo "passed=\$((passed + $passed)) failed=\$((failed + $failed))"
      echo "tests_passed=\$((tests_passed + $tests_passed)) tests_failed=\$((tests_failed + $tests_failed))"
      ((failed == 0)) || printf 'failures+=(%q)\n' "${failures[@]}"
      ((${#skipped[@]} == 0)) || printf 'skipped+=(%q)\n' "${skipped[@]}"
      ((${#spent[@]} == 0)) || printf 'spent+=(%q)\n' "${spent[@]}"
    } >"$scratch/beside.sums"
  } >"$scratch/beside.log" 2>&1 &
  beside=$!
  set +m
}
meet() {
  wait "$beside"
  beside=
  cat "$scratch/beside.log"
  source "$scratch/beside.sums" || {
    failed=$((failed + 1))
    failures+=("what ran beside the others: it came to no end")
  }
}

have() { command -v "$1" >/dev/null 2>&1; }

# debian PACKAGE…: installs Debian packages, where this may be done without asking.
debian() {
  local as=()
  have apt-get || return 1
  if [[ $EUID -ne 0 ]]; then
    sudo -n true 2>/dev/null || return 1
    as=(sudo -n)
  fi
  echo "── installing $*"
  ${as[@]+"${as[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# count FILE: adds what a test runner reported to the sums.
tests_passed=0 tests_failed=0
count() {
  local line ok bad
  while read -r line; do
    ok="$(sed -nE 's/.*[ :.]([0-9]+) passed.*/\1/p' <<<"$line")"
    bad="$(sed -nE 's/.*[,;] ([0-9]+) failed.*/\1/p' <<<"$line")"
    tests_passed=$((tests_passed + ${ok:-0}))
    tests_failed=$((tests_failed + ${bad:-0}))
  done < <(grep -E '^ *Summary \[|^test result:' "$1")
}

# The checker of Prometheus, taken out of Debian's package: installing that would start its service.
promtool_of_debian() {
  local dir="$PWD/target/promtool"
  have promtool && return 0
  if [[ ! -x "$dir/usr/bin/promtool" ]]; then
    have apt-get && have dpkg-deb || return 1
    mkdir -p "$dir" && (cd "$dir" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb .) >/dev/null 2>&1 || return 1
  fi
  export PATH="$PATH:$dir/usr/bin"
  have promtool
}

build() {
  if have cargo-nextest; then
    cargo nextest run --features faults --no-run
  else
    cargo test --features faults --no-run --lib --bins --tests
  fi
}

# A pooler for the tests over PostgreSQL, taken out of Debian's packages: installing would start its service.
pooler_of_debian() {
  local dir="$PWD/target/pgbouncer"
  { have pgbouncer || test -x /usr/sbin/pgbouncer; } && return 0
  if [[ ! -x "$dir/bin/pgbouncer" ]]; then
    have apt-get && have dpkg-deb || return 1
    mkdir -p "$dir/bin" && (cd "$dir" && apt-get download -qq pgbouncer libc-ares2 libevent-2.1-7 &&
      for file in *.deb; do dpkg-deb -x "$file" . || exit 1; done) >/dev/null 2>&1 || return 1
    printf '#!/bin/sh\nexec env LD_LIBRARY_PATH="%s" "%s" "$@"\n' \
      "$(dirname "$(find "$dir" -name 'libcares.so.2' | head -1)")" "$dir/usr/sbin/pgbouncer" >"$dir/bin/pgbouncer"
    chmod +x "$dir/bin/pgbouncer" && chmod -R a+rX "$dir"
  fi
  export PATH="$PATH:$dir/bin"
  pgbouncer --version >/dev/null 2>&1
}

# Most tests wait: for processes, for the end of a lease, for a limit of time.
at_once=(--test-threads "$((2 * $(nproc)))")

# What the tests leave out, they write into this file.
export MOONSWARM_SKIPPED="$scratch/skipped"
tests() {
  local status
  if have cargo-nextest; then
    cargo nextest run --features faults --no-fail-fast "${at_once[@]}" 2>&1 | tee "$scratch/tests"
  else
    cargo test --features faults --no-fail-fast --lib --bins --tests 2>&1 | tee "$scratch/tests"
  fi
  status=${PIPESTATUS[0]}
  count "$scratch/tests"
  return "$status"
}

# The same suites of the daemon, with its runs in PostgreSQL.
over_postgres() {
  local status suites=(--test http --test sessions --test responses --test faults --test failpoints --test storm)
  if have cargo-nextest; then
    MOONSWARM_TEST_STORE=postgres cargo nextest run --features faults --no-fail-fast "${at_once[@]}" "${suites[@]}" 2>&1 |
      tee "$scratch/over-postgres"
  else
    MOONSWARM_TEST_STORE=postgres cargo test --features faults --no-fail-fast "${suites[@]}" 2>&1 |
      tee "$scratch/over-postgres"
  fi
  status=${PIPESTATUS[0]}
  count "$scratch/over-postgres"
  return "$status"
}

# The ten tests that took longest, as nextest reported them.
slowest() {
  sed -nE 's/^ *(PASS|FAIL|TIMEOUT|SLOW|TRY [0-9]+ PASS) \[ *>? *([0-9.]+)s\] +(\([^)]*\) +)?(.*)$/\2 \4/p' "$1" |
    sort -rn | awk '!seen[$2 " " $3]++' | head -10
}

doctests() {
  cargo test --features faults --doc 2>&1 | tee "$scratch/doctests"
  local status=${PIPESTATUS[0]}
  count "$scratch/doctests"
  return "$status"
}

blueprints() {
  local file status=0
  for file in blueprints/*.lua; do
    case "$file" in *_test.lua) continue ;; esac
    "$moonswarm" check "$file" || status=1
  done
  "$moonswarm" test blueprints/hello_test.lua blueprints/release_test.lua || status=1
  "$moonswarm" check blueprints/cookbook || status=1
  "$moonswarm" test blueprints/cookbook || status=1
  return "$status"
}

# What a step costs beside the bare disk, of a release build: a ratio, so that it means the same on
# any machine, and three tries, for a machine that does something else at that moment.
gates() {
  local try
  cargo build --release --bin moonswarm --bench load || return 1
  for try in 1 2 3; do
    cargo bench --bench load -- --quick --gate && return 0
    echo "── gates: try $try failed"
  done
  return 1
}

# The long forms of the suites, in a release build; scripts/soak.sh goes on with them for hours.
long() {
  cargo nextest run --release --features faults --no-fail-fast "$@"
}
walk() { MOONSWARM_WALK=all long --test failpoints; }
storms() { MOONSWARM_STORM=full long --test storm --test sessions -E 'binary(storm) | test(/storm/)'; }
fuzz() {
  PROPTEST_CASES="${PROPTEST_CASES:-20000}" long --test fuzz
}
kills() { MOONSWARM_KILLS="${MOONSWARM_KILLS:-200}" MOONSWARM_KILL_RUNS="${MOONSWARM_KILL_RUNS:-200}" long --test kill; }
node_kills() { MOONSWARM_KILLS="${MOONSWARM_NODE_KILLS:-50}" long --test cluster -E 'test(/killed/)'; }
seeds() { MOONSWARM_SEEDS="${MOONSWARM_SEEDS:-20000}" long --lib -E 'test(/simulation/)'; }

# The library as a dependency: a crate of somebody else's. It takes our own profile and our lock file,
# so that libraries are not read again; the full form takes the newest releases of them, as `cargo add`
# and `cargo install` do.
outside() {
  sed -n '/^\[profile\.dev/,/^\[profile\.release/{/^\[profile\.release/!p}' Cargo.toml >"$scratch/profile.toml"
  cp -r tests/outside "$scratch/outside" && { $full || cp Cargo.lock "$scratch/outside"; } &&
    sed -i "s|path = \"../..\"|path = \"$PWD\"|" "$scratch/outside/Cargo.toml" &&
    CARGO_TARGET_DIR="$(realpath -m "${CARGO_TARGET_DIR:-target}")" \
      cargo check --manifest-path "$scratch/outside/Cargo.toml" --config "$scratch/profile.toml"
}

# The same without the host: the protocol and the response loop alone, with no runtime, SQL, Lua or
# HTTP below it.
core() {
  local tree
  cp -r tests/outside-core "$scratch/outside-core" &&
    sed -i "s|path = \"../..\"|path = \"$PWD\"|" "$scratch/outside-core/Cargo.toml" &&
    CARGO_TARGET_DIR="$(realpath -m "${CARGO_TARGET_DIR:-target}")/core" \
      cargo run --manifest-path "$scratch/outside-core/Cargo.toml" || return 1
  tree="$(cargo tree --manifest-path "$scratch/outside-core/Cargo.toml" --edges normal --prefix none)" || return 1
  ! grep -E '^(tokio|rusqlite|mlua|hyper|axum|reqwest|tower|notify|clap) ' <<<"$tree"
}

# The public tests of the protocol's crate and of the response loop's, from the registry, against
# this crate: nothing of them is changed but the path by which the first imports the crate.
suites() {
  local there="$scratch/suites" manifests
  cp -r tests/outside-suites "$there" &&
    sed -i "s|path = \"../..\"|path = \"$PWD\"|" "$there/Cargo.toml" || return 1
  manifests="$(cargo metadata --manifest-path "$there/fetch/Cargo.toml" --format-version 1 |
    grep -o '"manifest_path":"[^"]*/\(layer0-0.4.1\|onwards-0.27.0\)/Cargo.toml"' |
    sed 's|.*"manifest_path":"||; s|/Cargo.toml"||')" || return 1
  mkdir -p "$there/tests"
  for crate in $manifests; do
    case "$crate" in
      */layer0-*)
        for suite in phase1 phase2; do
          sed 's/\blayer0::/moonswarm::protocol::/g' "$crate/tests/$suite.rs" >"$there/tests/$suite.rs"
        done ;;
      */onwards-*) cp "$crate/src/response_loop_tests.rs" "$there/src/" ;;
    esac
  done
  CARGO_TARGET_DIR="$(realpath -m "${CARGO_TARGET_DIR:-target}")/core" \
    cargo test --manifest-path "$there/Cargo.toml" 2>&1 | tee "$scratch/suites.log"
  (("${PIPESTATUS[0]}" == 0)) || return 1
  # That they were found at all: 107, 23 and 13 tests.
  test "$(grep -cE '^test result: ok\. (107|23|13) passed' "$scratch/suites.log")" -eq 3
}

report() {
  "$moonswarm" --data "$scratch/data" run blueprints/repo-report.lua path=. >"$scratch/report" &&
    test -s "$scratch/report"
}

# The official clients of the Responses and the Messages API, and the official SDK of MCP for Python,
# below target/, for tests/responses/clients.rs and tests/mcp/clients.rs.
clients="$(realpath -m "${CARGO_TARGET_DIR:-target}")/clients"
python_client() {
  python3 -c "import ensurepip" 2>/dev/null || debian python3 python3-venv || return 1
  test -x "$clients/py/bin/python" || python3 -m venv "$clients/py" || return 1
  "$clients/py/bin/python" -c "import openai, anthropic, websockets; from mcp import Client" 2>/dev/null ||
    "$clients/py/bin/pip" install -q openai anthropic websockets mcp==2.3.0
}
typescript_client() {
  { have node && have npm; } || debian nodejs npm || return 1
  mkdir -p "$clients/ts" && cd "$clients/ts" || return 1
  test -f package.json || echo '{"private": true, "type": "module"}' >package.json
  test -d node_modules/openai && test -d node_modules/@anthropic-ai/sdk ||
    npm install --silent openai @anthropic-ai/sdk typescript @types/node
}
# A Node that runs TypeScript, and what wants one as new: Debian's is older, so it comes as a package.
# Of MCP the conformance suite, and the official SDKs and the Inspector for tests/mcp/clients.rs;
# llmprobe for tests/responses/probe.rs.
newer_node() {
  local arch package missing=()
  { have node && have npm; } || debian nodejs npm || return 1
  case "$(uname -m)" in x86_64) arch=x64 ;; aarch64) arch=arm64 ;; *) return 1 ;; esac
  mkdir -p "$clients/mcp" && cd "$clients/mcp" || return 1
  test -f package.json || echo '{"private": true, "type": "module"}' >package.json
  for package in "node-linux-$arch@22.23.3" @modelcontextprotocol/{conformance@0.2.0-alpha.12,sdk@1.32.2} \
    @modelcontextprotocol/{client@2.4.0,inspector@2.12.0} llmprobe@0.6.12; do
    grep -qs "\"version\": \"${package##*@}\"" "node_modules/${package%@*}/package.json" || missing+=("$package")
  done
  ((${#missing[@]} == 0)) || npm install --silent --save-exact "${missing[@]}" || return 1
  ln -sfn "node_modules/node-linux-$arch" node
}
# Codex, a coding agent of others, for tests/mcp/codex.rs: 130 MB.
coding_agent() {
  { have node && have npm; } || debian nodejs npm || return 1
  mkdir -p "$clients/agents" && cd "$clients/agents" || return 1
  test -f package.json || echo '{"private": true}' >package.json
  grep -qs '"version": "0.169.0"' node_modules/@openai/codex/package.json ||
    timeout 300 npm install --silent --no-audit --no-fund --save-exact @openai/codex@0.169.0
}
conformance() {
  local data="$scratch/mcp" daemon proxy status=1 url revision
  "$moonswarm" --data "$data" serve --listen 127.0.0.1:0 --blueprints tests/mcp/conformance 2>"$scratch/mcp.log" &
  daemon=$!
  timeout 30 bash -c "until test -f '$data/server.json'; do sleep 0.1; done" || { kill "$daemon"; return 1; }
  url="$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$data/server.json")"
  node tests/mcp/conformance/proxy.mjs "$url" "$(cat "$data/admin.token")" >"$scratch/proxy" &
  proxy=$!
  if timeout 30 bash -c "until test -s '$scratch/proxy'; do sleep 0.1; done"; then
    status=0
    for revision in 2025-11-25 2026-07-28; do
      timeout 300 "$MOONSWARM_NODEJS" "$clients/mcp/node_modules/@modelcontextprotocol/conformance/dist/index.js" server \
        --url "$(cat "$scratch/proxy")/mcp" --requirements "$revision" \
        --expected-failures "tests/mcp/conformance/expected-$revision.yml" >"$scratch/conformance.log" 2>&1 || status=1
      grep -E "^(✗|✓)|^Total|^Unexpected|^Stale" "$scratch/conformance.log"
      (( status == 0 )) || tail -20 "$scratch/conformance.log"
    done
  fi
  kill "$proxy" "$daemon" && wait "$daemon"
  return "$status"
}
# A real browser for the dashboard, and what drives it: tests/dashboard/browser.rs.
browser() {
  have chromium || debian chromium fonts-dejavu-core || return 1
  { have node && have npm; } || debian nodejs npm || return 1
  mkdir -p "$clients/browser" && cd "$clients/browser" || return 1
  test -f package.json || echo '{"private": true, "type": "module"}' >package.json
  { test -d node_modules/playwright-core && test -d node_modules/axe-core; } ||
    npm install --silent playwright-core axe-core typescript
}
# The scripts of the dashboard, checked by the compiler from their comments.
scripts_of_pages() {
  "$clients/browser/node_modules/.bin/tsc" --noEmit --allowJs --checkJs --strict --target es2022 --module esnext \
    --lib es2022,dom,dom.iterable src/dashboard/assets/*.js
}
# The API against its own description: schemathesis sends what the document allows and forbids.
schemathesis="$clients/py/bin/schemathesis"
tester() {
  python_client || return 1
  test -x "$schemathesis" || "$clients/py/bin/pip" install -q schemathesis==4.32.5
}
description() {
  local data="$scratch/api" daemon status=1 token
  mkdir -p "$scratch/hello" && cp blueprints/hello.lua "$scratch/hello/"
  "$moonswarm" --data "$data" serve --listen 127.0.0.1:0 --blueprints "$scratch/hello" 2>"$scratch/api.log" &
  daemon=$!
  if timeout 30 bash -c "until test -f '$data/server.json'; do sleep 0.1; done"; then
    token="$(cat "$data/admin.token")"
    "$schemathesis" --config-file tests/openapi/schemathesis.toml run \
      "$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$data/server.json")/openapi.json" \
      -H "Authorization: Bearer $token" --checks all --max-examples 15 --no-color --warnings off
    status=$?
  fi
  kill "$daemon" && wait "$daemon"
  return "$status"
}
# A language server as a program, for what editors say about the stubs: tests/cli/authoring.rs.
tools="$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools"
language_server() {
  tool emmylua_check 0.25.1
}
# tool CRATE VERSION: builds a program of others below target/tools, once and in the shortest time: two
# of them have many libraries in common.
tool() {
  test -x "$tools/bin/$1" ||
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$tools/build" cargo install --locked --debug --quiet \
      --version "$2" --root "$tools" "$1"
}
# cargo-deny, built once below target/tools: about two and a half minutes.
deny() {
  if have cargo-deny; then
    cargo-deny --all-features "$@"
    return
  fi
  tool cargo-deny 0.20.2 || return 1
  "$tools/bin/cargo-deny" --all-features "$@"
}
# Everything that a release has, with the package and the image tried out: scripts/release.sh fails where
# something of it could not be made.
release() {
  have buildah || debian buildah
  scripts/release.sh
}
supply_chain() { deny check licenses bans sources; }
# A copy of the database of vulnerabilities; it is on GitHub, which not every machine can reach.
advisories() {
  deny fetch db >/dev/null 2>&1 || ls -d "${CARGO_HOME:-$HOME/.cargo}"/advisory-dbs/advisory-db-* >/dev/null 2>&1
}
compile_typescript() {
  cp tests/responses/clients/*.ts "$clients/ts/" && cd "$clients/ts" && rm -f client.js messages.js &&
    npx tsc --strict --noUncheckedIndexedAccess --target es2022 --module nodenext --types node --skipLibCheck client.ts messages.ts
}

have c++ || debian g++ || skip "a C++ compiler" "it could not be installed; nothing that has Luau compiles"
# The tests over PostgreSQL start servers of their own, and name themselves where they cannot.
{ have initdb || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; } || debian postgresql || true
if ! have cargo-nextest; then
  echo "── installing cargo-nextest"
  cargo install cargo-nextest --locked ||
    skip "cargo-nextest" "it could not be installed; cargo test runs the tests instead"
fi

# What has a build directory of its own.
others() {
  step "a crate that depends on the protocol alone" core
  step "the public tests of layer0 and onwards" suites
  language_server || skip "the stubs in a language server" "emmylua_check could not be installed"
  step "licences, bans and sources of dependencies" supply_chain
  if advisories; then
    step "known vulnerabilities of dependencies" deny check advisories --disable-fetch
  else
    skip "known vulnerabilities of dependencies" "there is no copy of RustSec's database, and it cannot be fetched"
  fi
  rm -rf "$tools/build"
}

step "format" cargo fmt --check
beside_these others
step "clippy" cargo clippy --all-targets --features faults -- -D warnings
step "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --features faults --no-deps
if python_client; then
  export MOONSWARM_PYTHON="${MOONSWARM_PYTHON:-$clients/py/bin/python}"
else
  skip "the official Python client" "python3 with venv, or the registry, is not there"
fi
if (newer_node); then
  export MOONSWARM_NODEJS="${MOONSWARM_NODEJS:-$clients/mcp/node/bin/node}"
else
  skip "a newer Node" "node and npm, or the registry, are not there"
fi
(coding_agent) || skip "Codex" "node and npm, or the registry, are not there"
if (typescript_client); then
  step "the types of the official TypeScript client" eval "(compile_typescript)"
else
  skip "the official TypeScript client" "node and npm, or the registry, are not there"
fi
if (browser); then
  test -x "$clients/browser/node_modules/.bin/tsc" && step "the types of the dashboard's scripts" scripts_of_pages
else
  skip "the dashboard in a browser" "chromium, node and npm, or the registry, are not there"
fi
if promtool_of_debian; then
  step "the alert rules" promtool check rules deploy/prometheus/moonswarm.rules.yml
else
  skip "the alert rules and the form of the metrics" "promtool (Debian's package prometheus) is not there"
fi
pooler_of_debian || skip "a pooler before PostgreSQL" "pgbouncer (Debian's package pgbouncer) is not there"
test -f "${OPEN_RESPONSES_OPENAPI:-../shared/data/open-responses/openapi.json}" ||
  skip "the schemas of Open Responses" "OPEN_RESPONSES_OPENAPI does not name its document; the order of events is checked anyway"
step "a crate that depends on this one" outside
step "build" build
meet
step "tests" tests
if have initdb || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; then
  step "the suites of the daemon over PostgreSQL" over_postgres
else
  skip "the suites of the daemon over PostgreSQL" "initdb (Debian's package postgresql) is not there"
fi
step "doctests" doctests
moonswarm="${CARGO_TARGET_DIR:-target}/debug/moonswarm"
step "blueprints" blueprints
step "the first command of the README" report
if tester; then
  step "the API against its description" description
else
  skip "the API against its description" "python3 with venv, or the registry, is not there"
fi
if [[ -n "${MOONSWARM_NODEJS:-}" && -d "$clients/mcp/node_modules" ]]; then
  step "the MCP server against the conformance suite of the protocol" conformance
else
  skip "the conformance suite of MCP" "it could not be installed"
fi
have python3 || skip "the workers in Python" "python3 is not installed; the built-in ones ran"
$full && step "the files of a release" release
if $full && have cargo-nextest; then
  step "gates of speed" gates
  step "every kill point" walk
  step "storms" storms
  step "fuzzing" fuzz
  step "kills" kills
  step "kills of one of three nodes" node_kills
  step "seeds of the simulation" seeds
elif $full; then
  step "gates of speed" gates
  skip "the long suites" "cargo-nextest is not installed"
fi
# Last: it leaves programs behind that were built from broken sources. scripts/soak.sh has them all; the
# plain form checks only that each names a text that is there.
if $full && have cargo-nextest; then
  step "twelve mutants" scripts/mutants.sh --sample 12 --batch 6
elif $full; then
  skip "a sample of mutants" "cargo-nextest is not installed"
fi

if [[ -f "$MOONSWARM_SKIPPED" ]]; then
  while IFS= read -r line; do skipped+=("$line"); done < <(sort -u "$MOONSWARM_SKIPPED")
fi
echo
if [[ -f "$scratch/tests" ]] && have cargo-nextest; then
  echo "══ the slowest tests, in seconds:"
  slowest "$scratch/tests" | sed 's/^/   /'
fi
echo "══ the slowest steps, in seconds:"
printf '%s\n' "${spent[@]}" | sort -rn | head -6 | sed 's/^/   /'
echo "══ checks: $passed passed, $failed failed, ${#skipped[@]} not run"
for name in ${skipped[@]+"${skipped[@]}"}; do echo "   not run: $name"; done
for name in ${failures[@]+"${failures[@]}"}; do echo "   failed:  $name"; done
echo "══ tests: $tests_passed passed, $tests_failed failed; $((SECONDS / 60)) min in all"
test "$failed" -eq 0
