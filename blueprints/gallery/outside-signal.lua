-- An order is paid outside, maybe days later: the run waits, reminds, and gives up after a week.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "outside-signal",
  edition = 2,
  description = "Waits days for a signal from outside, reminds meanwhile, and gives up in the end.",
  input = s.object { order = s.string, reminders = s.integer { default = 3, minimum = 0 } },

  agents = {
    remind  = { operator = "queue", queue = "mail", timeout = "5m", retry = { max_attempts = 5, backoff = "1m" } },
    deliver = { operator = "queue", queue = "warehouse", timeout = "1h" },
  },

  flow = function(ctx, input)
    local reminded = 0
    ctx:on_query("state", function() return { order = input.order, reminded = reminded } end)
    for day = 0, input.reminders do
      ctx:status("waiting for the payment of " .. input.order)
      local paid, why = ctx:wait("paid", { timeout = "2d" })
      if why ~= "timeout" then
        local sent = ctx:run("deliver", { order = input.order, amount = paid.amount })
        return { paid = paid.amount, delivery = sent, reminded = reminded }
      end
      if day < input.reminders then
        reminded = reminded + 1
        ctx:run("remind", { order = input.order, number = reminded })
      end
    end
    swarm.fail("not_paid", input.order .. " was not paid", { reminded = reminded })
  end,
}
