local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_input_required_result_list_roots",
  edition = 2,
  description = "Asks where the client works.",
  mcp = true,
  agents = {
    client_roots = {
      operator = "human",
      by = "starter:roots",
      prompt = "Where do you work?",
      output = s.array(s.object { uri = s.string, name = s.string { optional = true } }),
    },
  },
  flow = function(ctx)
    local uris = {}
    for _, root in ctx:run("client_roots") do
      table.insert(uris, root.uri)
    end
    return table.concat(uris, " ")
  end,
}
