local swarm = require("swarm")

local function titled(...)
  local choices = {}
  for number, title in ipairs { ... } do
    choices[number] = { const = "value" .. number, title = title }
  end
  return choices
end

return swarm.blueprint {
  name = "test_elicitation_sep1330_enums",
  edition = 2,
  description = "Asks for choices of each kind.",
  mcp = true,
  agents = {
    user = {
      operator = "human",
      by = "starter",
      prompt = "Please choose.",
      output = {
        type = "object",
        properties = {
          untitledSingle = { type = "string", enum = { "option1", "option2", "option3" } },
          titledSingle = { type = "string", oneOf = titled("First Option", "Second Option", "Third Option") },
          legacyEnum = {
            type = "string",
            enum = { "opt1", "opt2", "opt3" },
            enumNames = { "Option One", "Option Two", "Option Three" },
          },
          untitledMulti = {
            type = "array",
            items = { type = "string", enum = { "option1", "option2", "option3" } },
          },
          titledMulti = { type = "array", items = { anyOf = titled("First Choice", "Second Choice", "Third Choice") } },
        },
      },
    },
  },
  flow = function(ctx)
    return ctx:run("user")
  end,
}
