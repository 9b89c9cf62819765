-- Asks an approver before it publishes. Reminds every four hours, and gives up after two days.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "approval-deadline",
  edition = 2,
  description = "Publishes a page once an approver agrees, within two days.",
  input = s.object { page = s.string },

  agents = {
    publish = { operator = "process", command = { "echo", "published {{ page }}" }, timeout = "1m" },
  },

  flow = function(ctx, input)
    local ok, answer = pcall(function()
      return ctx:approve {
        title = "Publish " .. input.page .. "?",
        by = "approver", remind = "4h", timeout = "2d",
      }
    end)
    if not ok then
      if answer.kind == "human_rejected" then return { status = "rejected", reason = answer.message } end
      if answer.kind == "timeout" then return { status = "expired" } end
      error(answer)
    end
    ctx:run("publish", { page = input.page })
    return { status = "published" }
  end,
}
