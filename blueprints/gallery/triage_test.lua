local t = require("swarm.test")

local function sorted(as)
  local run = t.start("triage.lua", { title = "it burns" })
  run:mock("sorter", as)
  run:mock("post", { ok = true })
  return run
end

t.test("what is clear goes straight on", function()
  local run = sorted { label = "bug", urgent = false, confidence = 0.9, reply = "thanks" }
  t.equal(run:finish(), { label = "bug", by = "sorter" })
  t.equal(run:inputs("post")[1].reply, "thanks")
end)

t.test("what is urgent or unclear waits for a person", function()
  local run = sorted { label = "bug", urgent = true, confidence = 0.9, reply = "?" }
  t.equal(run:status(), "waiting")
  run:answer("gate", { label = "question", reply = "read this" })
  t.equal(run:finish(), { label = "question", by = "person" })
  t.equal(run:inputs("post")[1].label, "question")
end)

t.test("spam is answered by nobody", function()
  local run = sorted { label = "spam", urgent = false, confidence = 1, reply = "" }
  run:finish()
  t.equal(run:count("post"), 0)
end)
