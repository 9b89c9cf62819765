local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "confirm_delete",
  edition = 2,
  description = "Asks before it deletes.",
  mcp = true,
  input = s.object { filename = s.string { default = "file" } },
  agents = {
    confirm = { operator = "human", by = "starter", prompt = "Delete it?", output = s.object { confirm = s.boolean { optional = true } } },
  },
  flow = function(ctx, input)
    local answer = ctx:run("confirm")
    return { content = { { type = "text", text = (answer.confirm and "deleted " or "kept ") .. input.filename } } }
  end,
}
