-- An agent that changes the files of a directory: it lists and reads, edits only what a person approves, and runs
-- the tests in an environment until they pass.
--
-- Without a key, with the scripted answers of blueprints/turns.json (run it in a copy of your files):
--   moonswarm run blueprints/coding-agent.lua task="make it add" test="sh test.sh"
-- With a model: change moonswarm.toml beside this file (docs/operators.md,
-- docs/environments.md). `moonswarm inbox` lists the edits that wait for approval.
local swarm = require("swarm")
local s = swarm.schema

-- Refuses paths outside the run's directory.
local INSIDE = [[
inside() {
  case $(realpath -m -- "$1") in "$(pwd -P)"/*) ;; *) echo "$1 is not in this directory" >&2; exit 1 ;; esac
}
inside "$1"
]]
local READ = INSIDE .. [[head -c 40000 -- "$1"]]
-- Replaces a text that occurs exactly once; with an empty OLD, writes a new file.
local EDIT = INSIDE .. [[
if [ -z "$OLD" ]; then
  [ -e "$1" ] && { echo "$1 is there already: say which text of it to replace" >&2; exit 1; }
  mkdir -p -- "$(dirname -- "$1")" && printf '%s' "$NEW" >"$1" && echo "written" && exit
fi
count=$(awk 'BEGIN { RS = "\001" } { t = $0; while (i = index(t, ENVIRON["OLD"])) { n++; t = substr(t, i + length(ENVIRON["OLD"])) } } END { print n + 0 }' "$1") || exit 1
[ "$count" = 1 ] || { echo "the text is there $count times, and has to be there once" >&2; exit 1; }
new=$(mktemp) &&
  awk 'BEGIN { RS = "\001"; ORS = "" } { i = index($0, ENVIRON["OLD"]); print substr($0, 1, i - 1) ENVIRON["NEW"] substr($0, i + length(ENVIRON["OLD"])) }' "$1" >"$new" &&
  cat "$new" >"$1" && rm -f "$new" && echo "replaced"]]

return swarm.blueprint {
  name = "coding-agent",
  edition = 2,
  description = "Changes files until their tests pass; a person approves each change.",
  input = s.object { task = s.string, test = s.string { default = "make test" } },

  agents = {
    list = {
      operator = "process", check = false, timeout = "1m",
      description = "The files of this directory.",
      input = s.object {},
      command = { "sh", "-c", "find . -type f -not -path './.git/*' | sort | head -n 500" },
    },
    read = {
      operator = "process", check = false, timeout = "1m",
      description = "The beginning of a file.",
      input = s.object { path = s.string },
      command = { "sh", "-c", READ, "read", "{{ path }}" },
    },
    edit = {
      operator = "process", check = false, timeout = "1m",
      description = "Replaces `old`, a text that is in the file exactly once, by `new`. With an empty `old` it writes a new file.",
      input = s.object { path = s.string, old = s.string, new = s.string },
      command = { "sh", "-c", EDIT, "edit", "{{ path }}" },
      env = { OLD = "{{ old }}", NEW = "{{ new }}" },
    },
    test = {
      operator = "process", check = false, timeout = "10m", environment = "tests", cwd = ".",
      description = "Runs the tests.",
      input = s.object { command = s.string },
      command = { "sh", "-c", "{{ command }}" },
    },
    coder = {
      operator = "model", max_turns = 40,
      tools = {
        "list", "read",
        { agent = "edit", approve = "ask", parallel_safe = false },
        { agent = "test", parallel_safe = false },
      },
      retry = { max_attempts = 3, backoff = "2s" },
      system = "You change code. Look before you edit, make small edits, and run the tests with `{{ input.test }}` after the last one. "
        .. "When they pass, say in a sentence or two what you changed.",
      prompt = "{{ task }}{% if log %}\n\nThe tests fail:\n{{ log }}{% endif %}",
    },
  },

  flow = function(ctx, input)
    local log = ""
    for round = 1, 3 do
      local summary = ctx:run("coder", { task = input.task, test = input.test, log = log })
      -- The flow runs the tests itself: the model's word about them does not count.
      local tests = ctx:run("test", { command = input.test })
      if tests.exit_code == 0 then return { summary = summary, rounds = round } end
      log = string.sub(tests.stdout .. tests.stderr, -4000)
    end
    swarm.fail("tests_fail", "the tests still fail")
  end,
}
