-- Handles every ticket once, however many runs get the same ticket. Runs share the state scope
-- `tickets`; the first run that writes a ticket's key has claimed it.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "claim-once",
  edition = 2,
  description = "Claims a ticket in shared state before working on it.",
  input = s.object { ticket = s.string },

  agents = {
    work = { operator = "process", command = { "echo", "worked on {{ ticket }}" }, timeout = "10m" },
  },

  flow = function(ctx, input)
    local tickets = ctx:scope { custom = "tickets" }

    -- Revision 0 stands for "not there yet": the write is refused if another run was first.
    local ok, err = pcall(function()
      tickets:set(input.ticket, { by = ctx.run_id }, { if_revision = 0, ttl = "30d" })
    end)
    if not ok then
      if err.kind == "refused" and err.data and err.data.code == "revision_mismatch" then
        return { handled = false, by = tickets:get(input.ticket).by }
      end
      error(err)
    end

    ctx:run("work", { ticket = input.ticket })
    return { handled = true, by = ctx.run_id, in_all = tickets:add("handled") }
  end,
}
