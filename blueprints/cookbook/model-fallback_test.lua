local t = require("swarm.test")

local down = t.failure { kind = "model", message = "overloaded", retryable = true }

t.test("the preferred model answers", function()
  local run = t.start("model-fallback.lua", { text = "Fixed two bugs." })
  run:model("preferred", { "Two bugs are fixed." })
  t.equal(run:finish(), { summary = "Two bugs are fixed.", by = "preferred" })
end)

t.test("the backup answers when the preferred model stays overloaded", function()
  local run = t.start("model-fallback.lua", { text = "Fixed two bugs." })
  run:mock("preferred", down)
  run:model("backup", { "Bugs were fixed." })
  t.equal(run:finish(), { summary = "Bugs were fixed.", by = "backup" })
end)

t.test("the run fails with the last failure when no model answers", function()
  local run = t.start("model-fallback.lua", { text = "Fixed two bugs." })
  run:mock("preferred", down)
  run:mock("backup", t.failure { kind = "model", message = "no credit" })
  t.equal(run:fails("model").message, "no credit")
end)
