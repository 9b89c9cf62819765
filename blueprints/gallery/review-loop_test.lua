local t = require("swarm.test")

local function started()
  local run = t.start("review-loop.lua", { issue = "crash on empty file" })
  run:mock("planner", { steps = { "reproduce", "guard" } })
  run:mock("coder", function(input) return { diff = input.step or "fixed" } end)
  run:mock("tests", { exit_code = 0, stdout = "", stderr = "" })
  return run
end

t.test("a blocked review is fixed once", function()
  local run = started()
  run:mock_sequence("reviewer", { { verdict = "blocked", findings = { "no test" } }, { verdict = "pass", findings = {} } })
  run:answer("ship", { approved = true })
  t.equal(run:finish(), { shipped = { { diff = "fixed" } }, rounds = 2 })
  t.equal(run:count("coder"), 3)
end)

t.test("it gives up after the last round", function()
  local run = started()
  run:mock("reviewer", { verdict = "blocked", findings = {} })
  t.match(run:fails("blocked"), { message = "still blocked after 3 rounds" })
end)

t.test("a person has the last word", function()
  local run = started()
  run:mock("reviewer", { verdict = "pass", findings = {} })
  run:answer("ship", { approved = false, note = "not today" })
  t.equal(run:fails("rejected").message, "not today")
end)
