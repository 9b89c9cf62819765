local swarm = require("swarm")

return swarm.blueprint {
  name = "test_elicitation_sep1034_defaults",
  edition = 2,
  description = "Asks for fields that have defaults.",
  mcp = true,
  agents = {
    user = {
      operator = "human",
      by = "starter",
      prompt = "Please fill this in.",
      output = {
        type = "object",
        properties = {
          name = { type = "string", default = "John Doe" },
          age = { type = "integer", default = 30 },
          score = { type = "number", default = 95.5 },
          status = { type = "string", enum = { "active", "inactive", "pending" }, default = "active" },
          verified = { type = "boolean", default = true },
        },
      },
    },
  },
  flow = function(ctx)
    return ctx:run("user")
  end,
}
