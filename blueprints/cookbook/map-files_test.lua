local t = require("swarm.test")

t.test("the lines of all files are added, and a file that fails is named", function()
  local run = t.start("map-files.lua", { path = "src" })
  run:mock("list", { exit_code = 0, stdout = "src/b.lua\nsrc/a.lua\nsrc/c.lua\n", stderr = "" })
  run:mock("count", function(input)
    if input.file == "src/b.lua" then error({ kind = "process", message = "exit code 1" }) end
    return 10
  end)
  t.equal(run:finish(), { files = 3, lines = 20, failed = { "src/b.lua" } })
end)

t.test("an empty directory has no lines", function()
  local run = t.start("map-files.lua", {})
  run:mock("list", { exit_code = 0, stdout = "", stderr = "" })
  t.match(run:finish(), { files = 0, lines = 0 })
end)
