local swarm = require("swarm")
local s = swarm.schema

-- Try it:  moonswarm run @NAME@.lua who=moon
return swarm.blueprint {
  name = "@NAME@",
  edition = 2,
  description = "Greets in parallel, asks a child process for the day, and says it all in one line.",
  input = s.object { who = s.string { default = "world" } },

  agents = {
    -- returns its input: stands in for a real agent while you shape the flow
    echo  = { operator = "echo" },
    -- pure Lua, off the flow's thread
    greet = { operator = "lua", fn = function(input) return input.word .. ", " .. input.who .. "!" end },
    -- a child process; what it prints is its result
    today = { operator = "process", command = { "date", "+%A" }, check = false, timeout = "10s" },
  },

  -- Every result below is in the journal: after a crash the flow goes on from there.
  flow = function(ctx, input)
    ctx:status("greeting " .. input.who)

    local greetings = ctx:map({ "Hello", "Olá", "Moin" }, function(word)
      return ctx:run("greet", { word = word, who = input.who })
    end, { concurrency = 2 })

    local day = ctx:run("today").stdout:gsub("%s+$", "")
    local said = ctx:run("echo", { text = table.concat(greetings, " ") })
    return said.text .. " It is " .. day .. "."
  end,
}
