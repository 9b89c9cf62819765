#!/usr/bin/env bash
# Breaks the code on purpose, one line at a time, and expects the named tests to notice:
#   scripts/mutants.sh                 every mutant of scripts/mutants/*.txt
#   scripts/mutants.sh --sample 3      three of them, picked by the day (or by MOONSWARM_SEED)
#   scripts/mutants.sh --only NAME     those whose name has NAME in it
#   scripts/mutants.sh --file trust    those of scripts/mutants/trust.txt
#   scripts/mutants.sh --batch 8       eight in one build, of different files; one that nobody
#                                      noticed, or a batch that does not build, is tried alone
#   scripts/mutants.sh --lib           builds the unit tests alone; for mutants that these notice
#   scripts/mutants.sh --list          their names, nothing is run
# A line of a file is: name | file | exact old text | new text | nextest filter. The old text has to
# be there exactly once. Each costs a build of the crate, unless they share one: then a test may be
# red for another's sake, so the word of a run without --batch counts more. Ends non-zero when a
# mutant lived, when it did not build, and when its text is not there any more.
set -u
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}" RUST_BACKTRACE=0
exec </dev/null

sample=0 only="" file="*" list=false batch=1 targets=()
while (($#)); do
  case "$1" in
    --sample) sample="${2:?say how many}"; shift 2 ;;
    --batch) batch="${2:?say how many}"; shift 2 ;;
    --only) only="${2:?say which}"; shift 2 ;;
    --file) file="${2:?say which}"; shift 2 ;;
    --lib) targets=(--lib); shift ;;
    --list) list=true; shift ;;
    *) echo "unknown option $1; the head of this file says what there is" >&2; exit 2 ;;
  esac
done

mutants=()
while IFS= read -r line; do
  [[ -z "$line" || "$line" == "#"* ]] && continue
  [[ -n "$only" && "${line%% | *}" != *"$only"* ]] && continue
  mutants+=("$line")
done < <(cat scripts/mutants/$file.txt)

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

scratch="$(mktemp -d)" log="$scratch/log"
# What is broken now: the files, and beside each its copy.
broken=()
restore() {
  local n
  for n in ${broken[@]+"${!broken[@]}"}; do cp "$scratch/$n" "${broken[n]}"; done
  broken=()
}
trap 'restore; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

dead=0 wrong=()
complain() {
  wrong+=("$1: $2")
  echo "── $1: $2"
}

# field LINE N: one of the five.
field() {
  local rest="$1" n
  for ((n = 1; n < $2; n++)); do rest="${rest#* | }"; done
  (($2 == 5)) && echo "$rest" || echo "${rest%% | *}"
}

# breaks LINE: applies a mutant, or says why it cannot.
breaks() {
  local name file old new text without
  name="$(field "$1" 1)" file="$(field "$1" 2)" old="$(field "$1" 3)" new="$(field "$1" 4)"
  if [[ ! -f "$file" ]]; then
    complain "$name" "there is no $file"
    return 1
  fi
  text="$(<"$file")"
  without="${text//"$old"/}"
  if (( ${#text} - ${#without} != ${#old} )); then
    complain "$name" "its text is not in $file exactly once: $old"
    return 1
  fi
  cp "$file" "$scratch/${#broken[@]}"
  broken+=("$file")
  printf '%s\n' "${text/"$old"/"$new"}" >"$file"
}

# tests_of FILTER: the tests that it means, one a line: binary and name.
tests_of() {
  cargo nextest list --features faults ${targets[@]+"${targets[@]}"} --message-format oneline -E "$1" 2>/dev/null | sort
}

# try LINE…: runs the tests of some mutants over one build of them all. What was not noticed, and
# what cannot be built, is left in `again`.
again=()
try() {
  local applied=() filters="" line begin=$SECONDS status
  again=()
  for line in "$@"; do
    breaks "$line" || continue
    applied+=("$line")
    filters+="${filters:+ | }($(field "$line" 5))"
  done
  ((${#applied[@]})) || return 0
  cargo nextest run --features faults ${targets[@]+"${targets[@]}"} --profile mutants --no-fail-fast --no-tests fail -E "$filters" >"$log" 2>&1
  status=$?
  # A failed test is named while it runs and again at the end.
  grep -E '^ *(FAIL|TIMEOUT|ABORT|SIG[A-Z]+|LEAK-FAIL) \[' "$log" | sed -E 's/.*\] +(\([^)]*\) +)?//' | sort -u >"$scratch/red"
  for line in "${applied[@]}"; do
    case "$status" in
      100)
        tests_of "$(field "$line" 5)" >"$scratch/named"
        if [[ -n "$(comm -12 "$scratch/red" "$scratch/named")" ]]; then
          dead=$((dead + 1))
          echo "── $(field "$line" 1): noticed ($((SECONDS - begin)) s, ${#applied[@]} together)"
          continue
        fi
        verdict="nobody noticed"
        [[ -s "$scratch/named" ]] || verdict="no test fits $(field "$line" 5)"
        ;;
      0) verdict="nobody noticed" ;;
      4) verdict="no test fits $(field "$line" 5)" ;;
      *) verdict="it did not build" ;;
    esac
    if ((${#applied[@]} > 1)); then
      again+=("$line")
    else
      complain "$(field "$line" 1)" "$verdict"
      [[ "$verdict" == "it did not build" ]] && grep -m 5 -E '^error' "$log"
    fi
  done
  restore
}

while ((${#mutants[@]})); do
  now=() later=() files=$'\n'
  for line in "${mutants[@]}"; do
    file="$(field "$line" 2)"
    if ((${#now[@]} < batch)) && [[ "$files" != *$'\n'"$file"$'\n'* ]]; then
      now+=("$line")
      files+="$file"$'\n'
    else
      later+=("$line")
    fi
  done
  try "${now[@]}"
  left=(${again[@]+"${again[@]}"})
  for line in ${left[@]+"${left[@]}"}; do try "$line"; done
  mutants=(${later[@]+"${later[@]}"})
done

echo "══ mutants: $dead noticed, ${#wrong[@]} not"
for text in ${wrong[@]+"${wrong[@]}"}; do echo "   $text"; done
((${#wrong[@]} == 0))
