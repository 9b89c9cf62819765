local t = require("swarm.test")

local red = { exit_code = 1, stdout = "1 failed", stderr = "" }
local green = { exit_code = 0, stdout = "ok", stderr = "" }

t.test("the agent gets the log of the tests that failed", function()
  local run = t.start("test-gate.lua", { task = "fix it" })
  run:mock("coder", { summary = "guarded the empty case" })
  run:mock_sequence("tests", { red, green })
  t.equal(run:finish(), { summary = "guarded the empty case", rounds = 2 })
  t.equal(run:inputs("coder")[2].log, "1 failed")
end)

t.test("tests that stay red fail the run", function()
  local run = t.start("test-gate.lua", { task = "fix it", rounds = 2 })
  run:mock("coder", { summary = "all tests pass now" })
  run:mock("tests", red)
  t.equal(run:fails("tests_fail").data, { log = "1 failed" })
  t.equal(run:count("coder"), 2)
end)
