local swarm = require("swarm")

return swarm.blueprint {
  name = "watched_resource",
  edition = 2,
  description = "A resource that changes with its blueprint.",
  mcp = { uri = "test://watched-resource", mime_type = "text/plain" },
  flow = function()
    return "watched"
  end,
}
