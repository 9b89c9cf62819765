local t = require("swarm.test")

t.test("each repository is a run, and one that fails does not stop the others", function()
  t.blueprint("fan-out-item.lua")
  local run = t.start("fan-out.lua", { repositories = { "a.git", "", "b.git" } })
  run:mock("probe", function(input) return { exit_code = input.repository == "a.git" and 0 or 128 } end)
  t.equal(run:finish(), {
    checked = 3,
    healthy = { "a.git" },
    failed = { { repository = "", reason = "the repository has no name" } },
  })
end)
