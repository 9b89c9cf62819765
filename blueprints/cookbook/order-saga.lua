-- An order in three steps. Each step registers how to undo it; if a later step fails, or the run
-- is canceled, the steps that succeeded are undone, the latest first.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "order-saga",
  edition = 2,
  description = "Reserves, charges and ships an order, and undoes what succeeded if it fails.",
  input = s.object { order = s.string },

  agents = {
    reserve = { operator = "queue", queue = "stock", timeout = "1m" },
    release = { operator = "queue", queue = "stock", timeout = "1m", retry = { max_attempts = 10, backoff = "5s" } },
    charge  = { operator = "queue", queue = "payments", timeout = "1m" },
    refund  = { operator = "queue", queue = "payments", timeout = "1m", retry = { max_attempts = 10, backoff = "5s" } },
    ship    = { operator = "queue", queue = "warehouse", timeout = "1h", output = s.object { parcel = s.string } },
  },

  flow = function(ctx, input)
    local order = { order = input.order }

    ctx:run("reserve", order)
    ctx:defer(function() ctx:run("release", order) end)

    ctx:run("charge", order, { idempotency_key = "charge/" .. input.order })
    ctx:defer(function() ctx:run("refund", order) end)

    return ctx:run("ship", order)
  end,
}
