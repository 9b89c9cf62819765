#!/usr/bin/env bash
# Breaks the code on purpose, one line at a time, and expects the named tests to notice:
#   scripts/mutants.sh                 every mutant of scripts/mutants/*.txt
#   scripts/mutants.sh --sample 3      three of them, picked by the day (or by MOONSWARM_SEED)
#   scripts/mutants.sh --only NAME     those whose name has NAME in it
#   scripts/mutants.sh --list          their names, nothing is run
# A line of a file is: name | file | exact old text | new text | nextest filter. The old text has to
# be there exactly once. Each costs a build of the crate. Ends non-zero when a mutant lived, when it
# did not build, and when its text is not there any more.
set -u
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}" RUST_BACKTRACE=0
exec </dev/null

sample=0 only="" list=false
while (($#)); do
  case "$1" in
    --sample) sample="${2:?say how many}"; shift 2 ;;
    --only) only="${2:?say which}"; shift 2 ;;
    --list) list=true; shift ;;
    *) echo "unknown option $1; the head of this file says what there is" >&2; exit 2 ;;
  esac
done

mutants=()
while IFS= read -r line; do
  [[ -z "$line" || "$line" == "#"* ]] && continue
  [[ -n "$only" && "${line%% | *}" != *"$only"* ]] && continue
  mutants+=("$line")
done < <(cat scripts/mutants/*.txt)

if ((sample > 0 && sample < ${#mutants[@]})); then
  RANDOM="${MOONSWARM_SEED:-$(date +%j)}"
  picked=()
  while ((${#picked[@]} < sample)); do
    n=$((RANDOM % ${#mutants[@]}))
    picked+=("${mutants[n]}")
    unset 'mutants[n]'
    mutants=("${mutants[@]}")
  done
  mutants=("${picked[@]}")
fi

if $list; then
  for line in ${mutants[@]+"${mutants[@]}"}; do echo "${line%% | *}"; done
  exit 0
fi
if ! command -v cargo-nextest >/dev/null 2>&1; then
  echo "cargo-nextest is needed: it tells a red test from a build that fails" >&2
  exit 2
fi

broken="" kept="$(mktemp)" log="$(mktemp)"
restore() {
  [[ -n "$broken" ]] && cp "$kept" "$broken" && broken=""
  return 0
}
trap 'restore; rm -f "$kept" "$log"' EXIT
trap 'exit 130' INT TERM

dead=0 wrong=()
complain() {
  wrong+=("$1: $2")
  echo "── $1: $2"
}
for line in ${mutants[@]+"${mutants[@]}"}; do
  name="${line%% | *}" rest="${line#* | }"
  file="${rest%% | *}" rest="${rest#* | }"
  old="${rest%% | *}" rest="${rest#* | }"
  new="${rest%% | *}" filter="${rest#* | }"
  if [[ ! -f "$file" ]]; then
    complain "$name" "there is no $file"
    continue
  fi
  text="$(<"$file")"
  without="${text//"$old"/}"
  if (( ${#text} - ${#without} != ${#old} )); then
    complain "$name" "its text is not in $file exactly once: $old"
    continue
  fi
  cp "$file" "$kept"
  broken="$file"
  printf '%s\n' "${text/"$old"/"$new"}" >"$file"
  begin=$SECONDS
  cargo nextest run --features faults,test-utils --no-tests fail -E "$filter" >"$log" 2>&1
  status=$?
  restore
  case "$status" in
    100) dead=$((dead + 1)); echo "── $name: noticed ($((SECONDS - begin)) s)" ;;
    0) complain "$name" "nobody noticed" ;;
    4) complain "$name" "no test fits $filter" ;;
    *) complain "$name" "it did not build"; grep -m 5 -E '^error' "$log" ;;
  esac
done

echo "══ mutants: $dead noticed, ${#wrong[@]} not"
for text in ${wrong[@]+"${wrong[@]}"}; do echo "   $text"; done
((${#wrong[@]} == 0))
