local t = require("swarm.test")

t.test("the second run of a ticket leaves it alone", function()
  local first = t.start("claim-once.lua", { ticket = "T-1" })
  first:mock("work", "done")
  t.match(first:finish(), { handled = true, in_all = 1 })

  local second = t.start("claim-once.lua", { ticket = "T-1" })
  t.match(second:finish(), { handled = false })
  t.equal(second:count("work"), 0)
end)
