local t = require("swarm.test")

local function items(count)
  local list = {}
  for i = 1, count do list[i] = "item-" .. i end
  return list
end

t.test("a list longer than one history is done to its end", function()
  local run = t.start("migration.lua", { items = items(60) })
  run:mock("migrate", function(input)
    if input.item == "item-55" then error({ kind = "worker", message = "locked" }) end
    return true
  end)
  t.equal(run:finish(), { done = 59, failed = { { item = "item-55", why = "locked" } } })
end)

t.test("too many failures are a person's question", function()
  local run = t.start("migration.lua", { items = items(3), max_failures = 0 })
  run:mock("migrate", t.failure { message = "down" })
  t.equal(run:status(), "waiting")
  run:answer("ask", { go_on = false })
  local err = run:fails("stopped")
  t.match(err, { message = "stopped at item-1", data = { at = 2 } })
end)
