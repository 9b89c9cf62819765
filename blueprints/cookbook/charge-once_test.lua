local t = require("swarm.test")

t.test("a busy payment worker is asked again", function()
  local run = t.start("charge-once.lua", { order = "A-1", cents = 1200 })
  run:mock_sequence("charge", {
    t.failure { kind = "worker", message = "busy", retryable = true },
    { receipt = "r-7" },
  })
  t.equal(run:finish(), { order = "A-1", receipt = "r-7" })
end)

t.test("a declined card is not tried again", function()
  local run = t.start("charge-once.lua", { order = "A-2", cents = 1200 })
  run:mock("charge", t.failure { kind = "worker", message = "card declined", retryable = false })
  t.equal(run:fails("worker").message, "card declined")
end)
