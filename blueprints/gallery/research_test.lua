local t = require("swarm.test")

t.test("what cannot be found is named, and the rest is written", function()
  local run = t.start("research.lua", { question = "why is the sky blue" })
  run:mock("splitter", { parts = { "light", "air", "eyes" } })
  run:mock("researcher", function(input)
    if input.question == "eyes" then error({ kind = "worker", message = "no access" }) end
    return { answer = input.question .. "!", sources = { "https://example.org/" .. input.question } }
  end)
  run:mock("writer", function(input) return { text = #input.notes .. " notes" } end)
  t.equal(run:finish(), {
    text = "2 notes",
    sources = { "https://example.org/light", "https://example.org/air" },
    gaps = { "eyes" },
  })
end)

t.test("nothing at all is a failure", function()
  local run = t.start("research.lua", { question = "x" })
  run:mock("splitter", { parts = { "a" } })
  run:mock("researcher", t.failure { message = "offline", retryable = true })
  run:fails("nothing_found")
  t.ok(run:steps()[2].attempts >= 2, "it is tried again")
end)
