-- Answers a question about the files of a directory. A planner splits it, searchers answer the parts in parallel,
-- a writer combines them, and a critic sends the draft back until it passes.
--
-- Without a key, with the scripted answers of blueprints/turns.json:
--   moonswarm run blueprints/research.lua question="Which port is it?"
-- With a model: change [operators.model] in moonswarm.toml beside this file (docs/operators.md, "llm").
local swarm = require("swarm")
local s = swarm.schema

-- Bounded for a model: at most 20 lines per file, 300 characters per line, 200 lines in all.
local GREP = [[grep -rnIF -m 20 --exclude-dir=.git --exclude-dir=target --exclude-dir=node_modules -e "$1" -- . | cut -c -300 | head -n 200]]
-- Reads a file, if it is inside the run's directory.
local READ = [[
file=$(realpath -- "$1") || exit 1
case $file in "$(pwd -P)"/*) head -c 20000 -- "$file" ;; *) echo "$1 is not in this directory" >&2; exit 1 ;; esac]]

return swarm.blueprint {
  name = "research-files",
  edition = 2,
  description = "Answers a question from the files of a directory, checked by a critic.",
  input = s.object { question = s.string, rounds = s.integer { default = 3, minimum = 1, maximum = 10 } },

  agents = {
    grep = {
      operator = "process", check = false, timeout = "1m",
      description = "Lines of the files here that have a text in them, with file and line number.",
      input = s.object { text = s.string },
      command = { "sh", "-c", GREP, "grep", "{{ text }}" },
    },
    read = {
      operator = "process", check = false, timeout = "1m",
      description = "The beginning of a file of this directory.",
      input = s.object { path = s.string },
      command = { "sh", "-c", READ, "read", "{{ path }}" },
    },
    planner = {
      operator = "model",
      system = "You split questions about a directory of files. Each part can be answered alone; three are plenty.",
      prompt = "{{ question }}",
      output = s.object { parts = s.array(s.string) },
    },
    searcher = {
      operator = "model", tools = { "grep", "read" }, max_turns = 12, max_concurrency = 4,
      retry = { max_attempts = 3, backoff = "2s" },
      system = "You answer from the files that your tools show, and from nothing else. Name the files.",
      prompt = "{{ part }}",
      output = s.object { answer = s.string, sources = s.array(s.string) },
    },
    writer = {
      operator = "model",
      system = "You write short answers from notes, and name the sources.",
      prompt = "Question: {{ question }}\nNotes: {{ notes | tojson }}\n{% if findings %}Mend this: {{ findings | tojson }}\n{% endif %}",
    },
    critic = {
      operator = "model",
      system = "You block an answer that says more than its notes, leaves a part out, or names no source.",
      prompt = "Question: {{ question }}\nNotes: {{ notes | tojson }}\nAnswer: {{ draft }}",
      output = s.object { verdict = s.enum { "pass", "blocked" }, findings = s.array(s.string) },
    },
  },

  flow = function(ctx, input)
    local parts = ctx:run("planner", { question = input.question }).parts
    local found = ctx:map(parts, function(part)
      return ctx:run("searcher", { part = part })
    end, { concurrency = 4, on_error = "collect" })

    local notes, sources = swarm.array {}, swarm.array {}
    for i, one in ipairs(found) do
      if one.ok then
        table.insert(notes, { part = parts[i], answer = one.value.answer })
        for _, source in ipairs(one.value.sources) do
          if not table.find(sources, source) then table.insert(sources, source) end
        end
      else
        table.insert(notes, { part = parts[i], answer = "not found: " .. one.error.message })
      end
    end
    if #sources == 0 then swarm.fail("nothing_found", "no file says anything about it") end

    local draft, findings = nil, swarm.array {}
    for round = 1, input.rounds do
      ctx:status("draft " .. round .. " of at most " .. input.rounds)
      draft = ctx:run("writer", { question = input.question, notes = notes, findings = findings }, {
        on_delta = function(piece)
          if piece.type == "text" then ctx:publish("draft", piece.delta) end
        end,
      })
      local said = ctx:run("critic", { question = input.question, notes = notes, draft = draft })
      if said.verdict == "pass" then
        return { answer = draft, sources = sources, rounds = round }
      end
      findings = said.findings
    end
    swarm.fail("blocked", "the critic still finds: " .. table.concat(findings, "; "))
  end,
}
