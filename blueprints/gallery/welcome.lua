-- A first run: it works in parallel, waits, asks you, and keeps a file. It needs no key and no worker.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "welcome",
  edition = 2,
  description = "Writes three greetings, asks you for the best, and keeps it as a file.",
  input = s.object { who = s.string { default = "moon" } },

  agents = {
    -- pure Lua: stands in for a model, a coding agent, a process or a worker
    writer = { operator = "lua", fn = function(input) return { text = input.word .. ", " .. input.who .. "!" } end },
    -- waits in the inbox until a person answers
    choose = { operator = "human",
               prompt = "Which greeting is the best?\n\n1. {{ first }}\n2. {{ second }}\n3. {{ third }}",
               output = s.object {
                 best = s.enum { "first", "second", "third" }, note = s.string { optional = true } } },
  },

  flow = function(ctx, input)
    ctx:status("writing greetings for " .. input.who)
    local texts = ctx:map({ "Hello", "Olá", "Moin" }, function(word)
      return ctx:run("writer", { word = word, who = input.who }).text
    end)
    ctx:sleep("2s")
    ctx:status("a person chooses", { progress = 0.5 })
    local said = ctx:run("choose", {
      title = "Which greeting is the best?", first = texts[1], second = texts[2], third = texts[3],
    })
    local best = texts[({ first = 1, second = 2, third = 3 })[said.best]]
    ctx:artifact("greeting.md", "# " .. best .. "\n\n" .. (said.note or ""))
    ctx:status("chosen", { progress = 1 })
    return { greeting = best }
  end,
}
