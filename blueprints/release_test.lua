local t = require("swarm.test")

local function started(exit_code)
  local run = t.start("release.lua", { version = "1.2.0" })
  run:mock("tests", { exit_code = exit_code, stdout = "", stderr = "" })
  run:mock("notes", { text = "Two fixes." })
  run:mock("publish", { exit_code = 0, stdout = "published 1.2.0\n", stderr = "" })
  return run
end

t.test("a release that a person approves is published", function()
  local run = started(0)
  run:answer("approve", { approved = true })
  t.equal(run:finish(), "published 1.2.0\n")
end)

t.test("failing tests publish nothing", function()
  local run = started(1)
  t.equal(run:fails("red").message, "the tests fail")
  t.equal(run:count("publish"), 0)
end)

t.test("a rejection publishes nothing", function()
  local run = started(0)
  run:reject("approve", "not on a Friday")
  run:fails("human_rejected")
  t.equal(run:count("publish"), 0)
end)
