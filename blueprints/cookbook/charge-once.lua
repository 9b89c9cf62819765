-- Charges an order. The payment worker may be asked several times, but the card is charged once:
-- every attempt carries the same idempotency key, and a charge without a key is refused.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "charge-once",
  edition = 2,
  description = "Retries a payment under one idempotency key.",
  input = s.object { order = s.string, cents = s.integer { minimum = 1 } },

  agents = {
    charge = {
      operator = "queue", queue = "payments", timeout = "30s",
      retry = { max_attempts = 5, backoff = "2s", factor = 2, max = "1m" },
      output = s.object { receipt = s.string },
    },
  },

  middleware = {
    -- Makes the key required: a call that forgets it fails before anything is sent.
    function(task, next)
      if task.agent == "charge" and not task.opts.idempotency_key then
        swarm.fail("no_idempotency_key", "a charge needs an idempotency key")
      end
      return next(task)
    end,
  },

  flow = function(ctx, input)
    local paid = ctx:run("charge", { order = input.order, cents = input.cents },
      { idempotency_key = "charge/" .. input.order })
    return { order = input.order, receipt = paid.receipt }
  end,
}
