-- Many researchers look at one question from several sides; one writer puts it together.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "research",
  edition = 2,
  description = "Splits a question, researches its parts in parallel, writes one answer with its sources.",
  input = s.object { question = s.string, breadth = s.integer { default = 5, minimum = 1, maximum = 20 } },

  agents = {
    splitter   = { operator = "main-ai", worker = { subagent_type = "planner" },
                   prompt = "Split into at most {{ breadth }} parts that can be answered alone: {{ question }}",
                   input = s.object { question = s.string, breadth = s.integer },
                   output = s.object { parts = s.array(s.string) } },
    researcher = { operator = "main-ai", worker = { subagent_type = "researcher", tools = { "WebSearch", "WebFetch" } },
                   retry = { max_attempts = 2, backoff = "10s" }, timeout = "15m",
                   output = s.object { answer = s.string, sources = s.array(s.string) } },
    writer     = { operator = "main-ai", worker = { subagent_type = "writer" }, output = s.object { text = s.string } },
  },

  flow = function(ctx, input)
    local parts = ctx:run("splitter", { question = input.question, breadth = input.breadth }).parts
    -- A part that cannot be answered does not spoil the others.
    local found = ctx:map(parts, function(part, i)
      ctx:status("part " .. i .. ": " .. part)
      return ctx:run("researcher", { question = part })
    end, { concurrency = 5, on_error = "collect" })

    local notes, gaps, sources = swarm.array {}, swarm.array {}, swarm.array {}
    for i, one in ipairs(found) do
      if one.ok then
        table.insert(notes, { part = parts[i], answer = one.value.answer })
        for _, source in ipairs(one.value.sources) do table.insert(sources, source) end
      else
        table.insert(gaps, parts[i])
      end
    end
    if #notes == 0 then swarm.fail("nothing_found", "no part could be answered") end
    local text = ctx:run("writer", { question = input.question, notes = notes, gaps = gaps }).text
    ctx:artifact("answer.md", text)
    return { text = text, sources = sources, gaps = gaps }
  end,
}
