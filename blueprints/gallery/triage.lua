-- Incoming reports are sorted; what is urgent or unclear goes to a person first.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "triage",
  edition = 2,
  description = "Sorts an incoming report; a person decides what is urgent or unclear.",
  input = s.object { title = s.string, body = s.string { default = "" } },
  on = { { signal = "report-opened" } },

  agents = {
    sorter = { operator = "main-ai", worker = { subagent_type = "triage" },
               output = s.object {
                 label = s.enum { "bug", "question", "feature", "spam" },
                 urgent = s.boolean, confidence = s.number { minimum = 0, maximum = 1 }, reply = s.string,
               } },
    gate   = { operator = "human", park = "3d",
               output = s.object { label = s.enum { "bug", "question", "feature", "spam" }, reply = s.string } },
    post   = { operator = "queue", queue = "tracker", timeout = "5m", retry = { max_attempts = 5, backoff = "30s" } },
  },

  flow = function(ctx, input)
    local sorted = ctx:run("sorter", { title = input.title, body = input.body })
    local label, reply, by = sorted.label, sorted.reply, "sorter"
    if sorted.urgent or sorted.confidence < 0.7 then
      ctx:status("a person looks at it", { progress = 0.5 })
      local said = ctx:run("gate", { title = "Triage: " .. input.title, suggestion = sorted })
      label, reply, by = said.label, said.reply, "person"
    end
    if label ~= "spam" then
      ctx:run("post", { title = input.title, label = label, reply = reply })
    end
    return { label = label, by = by }
  end,
}
