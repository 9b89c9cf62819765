local t = require("swarm.test")

local red = { exit_code = 2, stdout = string.rep("x", 30000), stderr = "error: y" }
local green = { exit_code = 0, stdout = "ok", stderr = "" }

t.test("a red build is fixed and the change proposed", function()
  local run = t.start("ci-fixer.lua", {})
  run:mock_sequence("build", { red, red, green })
  run:mock_sequence("fixer", { { summary = "a", gave_up = false }, { summary = "b", gave_up = false } })
  run:mock("propose", { url = "https://example.org/1" })
  t.equal(run:finish(), { green = true, changed = true, notes = { "a", "b" }, proposal = { url = "https://example.org/1" } })
  local log = run:inputs("fixer")[1].log
  t.ok(#log < 21000, "the log is cut")
  t.ok(string.find(log, "error: y", 1, true), "its end is kept")
end)

t.test("a green build needs nobody", function()
  local run = t.start("ci-fixer.lua", {})
  run:mock("build", green)
  t.equal(run:finish(), { green = true, changed = false })
end)

t.test("who gives up, or has no attempt left, leaves it red", function()
  local run = t.start("ci-fixer.lua", { attempts = 1 })
  run:mock("build", red)
  run:mock("fixer", { summary = "no idea", gave_up = false })
  t.equal(run:fails("still_red").data, { notes = { "no idea" } })
  t.equal(run:count("build"), 2)
end)
