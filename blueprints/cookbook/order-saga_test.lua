local t = require("swarm.test")

local function started()
  local run = t.start("order-saga.lua", { order = "A-1" })
  for _, agent in ipairs { "reserve", "release", "charge", "refund" } do run:mock(agent, { ok = true }) end
  return run
end

local function undone(run)
  local names = {}
  for _, step in ipairs(run:steps()) do
    if step.name == "release" or step.name == "refund" then table.insert(names, step.name) end
  end
  return names
end

t.test("an order that succeeds undoes nothing", function()
  local run = started()
  run:mock("ship", { parcel = "p-9" })
  t.equal(run:finish(), { parcel = "p-9" })
  t.equal(#undone(run), 0)
end)

t.test("a failed shipment refunds first and releases then", function()
  local run = started()
  run:mock("ship", t.failure { kind = "worker", message = "no courier" })
  t.equal(run:fails("worker").message, "no courier")
  t.equal(undone(run), { "refund", "release" })
end)

t.test("a failed charge only releases the stock", function()
  local run = started()
  run:mock("charge", t.failure { kind = "worker", message = "declined" })
  run:fails("worker")
  t.equal(undone(run), { "release" })
end)
