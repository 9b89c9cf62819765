-- Tests a release and writes its notes side by side, asks a person, and publishes.
--   moonswarm serve --blueprints blueprints
--   moonswarm worker --queue writers -- blueprints/write-notes.sh
--   moonswarm run release version=1.2.0
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "release",
  edition = 2,
  description = "Tests, writes notes, asks a person, publishes.",
  input = s.object { version = s.string, test = s.string { default = "git diff --check" } },

  agents = {
    tests   = { operator = "process", command = { "sh", "-c", "{{ test }}" }, check = false, timeout = "20m" },
    notes   = { operator = "queue", queue = "writers", output = s.object { text = s.string } },
    publish = { operator = "process", command = { "echo", "published {{ version }}" } },
  },

  flow = function(ctx, input)
    local done = ctx:all {
      tests = function() return ctx:run("tests", { test = input.test }) end,
      notes = function() return ctx:run("notes", { version = input.version }) end,
    }
    if done.tests.exit_code ~= 0 then swarm.fail("red", "the tests fail") end
    ctx:approve { title = "Publish " .. input.version .. "?", body = done.notes.text }
    return ctx:run("publish", { version = input.version }).stdout
  end,
}
