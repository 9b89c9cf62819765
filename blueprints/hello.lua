-- Needs no key and no network: `moonswarm run blueprints/hello.lua name=Ada`
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "hello",
  description = "Greets in several languages.",
  input = s.object { name = s.string { default = "world" } },

  agents = {
    greet = {
      operator = "lua",
      fn = function(input) return { text = input.word .. ", " .. input.name .. "!" } end,
    },
    echo = { operator = "echo" },
  },

  flow = function(ctx, input)
    ctx:status("greeting " .. input.name)
    local greetings = ctx:map({ "Hello", "Olá", "Hallo" }, function(word)
      return ctx:run("greet", { word = word, name = input.name }).text
    end)
    return ctx:run("echo", { greetings = greetings })
  end,
}
