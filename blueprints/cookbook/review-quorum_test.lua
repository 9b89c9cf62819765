local t = require("swarm.test")

local pass = { verdict = "pass", reason = "" }

t.test("two of three reviewers are enough", function()
  local run = t.start("review-quorum.lua", { diff = "+ guard" })
  run:mock("reviewer", function(input)
    if string.find(input.question, "test") then return { verdict = "block", reason = "no test" } end
    return pass
  end)
  t.equal(run:finish(), { accepted = true, passed = 2, reasons = { "tests: no test" } })
end)

t.test("a reviewer that fails does not count", function()
  local run = t.start("review-quorum.lua", { diff = "+ guard" })
  run:mock_sequence("reviewer", { pass, t.failure { kind = "worker", message = "gone" }, pass })
  t.match(run:finish(), { accepted = true, passed = 2 })
end)

t.test("one answer is no quorum", function()
  local run = t.start("review-quorum.lua", { diff = "+ guard" })
  local gone = t.failure { kind = "worker", message = "gone" }
  run:mock_sequence("reviewer", { pass, gone, gone })
  t.equal(run:fails("no_quorum").message, "only 1 of 3 reviewers answered")
end)
