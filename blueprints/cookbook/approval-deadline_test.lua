local t = require("swarm.test")

local function started()
  local run = t.start("approval-deadline.lua", { page = "/pricing" })
  run:mock("publish", "published /pricing")
  return run
end

t.test("an approval publishes the page", function()
  local run = started()
  run:answer("approve", { approved = true })
  t.equal(run:finish(), { status = "published" })
end)

t.test("a rejection keeps its reason", function()
  local run = started()
  run:reject("approve", "not before Monday")
  t.equal(run:finish(), { status = "rejected", reason = "not before Monday" })
end)

t.test("after two days without an answer nothing is published", function()
  local run = started()
  t.equal(run:status(), "waiting")
  run:advance("2d")
  t.equal(run:finish(), { status = "expired" })
  t.equal(run:count("publish"), 0)
end)
