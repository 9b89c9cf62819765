local t = require("swarm.test")

-- Try it:  moonswarm test hello_test.lua --crash
t.test("everybody is greeted on a day of the week", function()
  local run = t.start("hello.lua", { who = "moon" })
  run:mock("today", { exit_code = 0, stdout = "Monday\n", stderr = "" })
  t.equal(run:finish(), "Hello, moon! Olá, moon! Moin, moon! It is Monday.")
  t.equal(run:count("greet"), 3)
end)
