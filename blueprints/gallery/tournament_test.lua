local t = require("swarm.test")

local function judged(run)
  run:mock("judge", function(input)
    return { better = #input.first >= #input.second and "first" or "second", why = "longer" }
  end)
end

t.test("the best of five wins, wherever it stands", function()
  local run = t.start("tournament.lua", { task = "a poem", candidates = 5 })
  run:mock("author", function(input) return { text = string.rep("la", input.style == 3 and 9 or input.style) } end)
  judged(run)
  t.equal(run:finish(), { text = string.rep("la", 9), author = 3, rounds = 3 })
  t.equal(run:count("judge"), 4)
end)

t.test("an author who fails is out, and nobody at all is a failure", function()
  local run = t.start("tournament.lua", { task = "x", candidates = 2 })
  run:mock("author", function(input)
    if input.style == 1 then error({ kind = "worker", message = "stuck" }) end
    return { text = "b" }
  end)
  t.equal(run:finish(), { text = "b", author = 2, rounds = 0 })
  local none = t.start("tournament.lua", { task = "x", candidates = 2 })
  none:mock("author", t.failure { message = "stuck" })
  none:fails("no_candidate")
end)
