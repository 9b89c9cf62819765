-- A long list, one item after the other. It goes on where it was after a crash, can be paused and
-- resumed, and begins a fresh history now and then, so that a list of any length fits.
local swarm = require("swarm")
local s = swarm.schema

local CHUNK = 50

return swarm.blueprint {
  name = "migration",
  edition = 2,
  description = "Migrates a list item by item, remembers what failed, and survives everything.",
  input = s.object {
    items = s.array(s.string),
    at = s.integer { default = 1, minimum = 1 },
    max_failures = s.integer { default = 10, minimum = 0 },
  },

  agents = {
    migrate = { operator = "queue", queue = "migrations", timeout = "10m", retry = { max_attempts = 3, backoff = "10s" } },
    ask     = { operator = "human", output = s.object { go_on = s.boolean } },
  },

  flow = function(ctx, input)
    local last = math.min(input.at + CHUNK - 1, #input.items)
    for i = input.at, last do
      local item = input.items[i]
      ctx:status(item, { progress = (i - 1) / #input.items })
      local _, err = ctx:try("migrate", { item = item }, { idempotency_key = item })
      if err then
        local failed = ctx.state:append("failed", { item = item, why = err.message })
        if #failed > input.max_failures then
          local said = ctx:run("ask", { title = "Too many failures: go on?", failed = failed })
          if not said.go_on then swarm.fail("stopped", "stopped at " .. item, { failed = failed, at = i + 1 }) end
          input.max_failures = math.huge
        end
      else
        ctx.state:add("done", 1)
      end
    end
    if last < #input.items then
      ctx:continue_as { items = input.items, at = last + 1, max_failures = math.min(input.max_failures, #input.items) }
    end
    return { done = ctx.state:get("done") or 0, failed = ctx.state:get("failed") or swarm.array {} }
  end,
}
