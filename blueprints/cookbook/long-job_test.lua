local t = require("swarm.test")

local encoded = { file = "talk.webm", seconds = 7200 }

t.test("a job whose worker dies is given to another worker", function()
  local run = t.start("long-job.lua", { file = "talk.mov" })
  run:mock_sequence("encode", { t.failure { kind = "timeout", message = "lease ended", retryable = true }, encoded })
  t.equal(run:finish(), encoded)
end)

t.test("a job that nobody takes fails with a reason", function()
  local run = t.start("long-job.lua", { file = "talk.mov" })
  run:mock("encode", t.failure { kind = "operator_unavailable", message = "nobody took it" })
  t.equal(run:fails("not_encoded").message, "no worker finished talk.mov: operator_unavailable")
end)
