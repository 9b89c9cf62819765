-- The build is red: find out why, fix it, try again, open a change when it is green.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "ci-fixer",
  edition = 2,
  description = "Runs the build, lets a coder fix what is red, and proposes the change when it is green.",
  input = s.object { command = s.string { default = "make test" }, attempts = s.integer { default = 3, minimum = 1 } },
  on = { { signal = "build-failed" } },
  limits = { wall = "6h" },

  agents = {
    build   = { operator = "process", command = { "sh", "-c", "{{ command }}" }, check = false, timeout = "30m",
                input = s.object { command = s.string }, retry = { max_attempts = 2 } },
    fixer   = { operator = "main-ai", worker = { subagent_type = "coder", tools = { "Read", "Edit", "Bash" } },
                timeout = "1h", output = s.object { summary = s.string, gave_up = s.boolean } },
    propose = { operator = "process", command = { "sh", "-c", "${PROPOSE_COMMAND:-git diff --stat}" }, timeout = "5m" },
  },

  middleware = {
    -- Whoever fixes gets the end of the log: the beginning of a long one says little.
    function(task, next)
      if task.agent == "fixer" and #task.input.log > 20000 then
        task.input.log = "…" .. string.sub(task.input.log, -20000)
      end
      return next(task)
    end,
  },

  flow = function(ctx, input)
    local notes = swarm.array {}
    for attempt = 1, input.attempts + 1 do
      local built = ctx:run("build", { command = input.command })
      if built.exit_code == 0 then
        if #notes == 0 then return { green = true, changed = false } end
        local proposed = ctx:run("propose", { notes = notes })
        return { green = true, changed = true, notes = notes, proposal = proposed }
      end
      if attempt > input.attempts then break end
      ctx:status("fixing, attempt " .. attempt .. " of " .. input.attempts)
      local fixed = ctx:run("fixer", { log = built.stdout .. built.stderr, tried = notes })
      table.insert(notes, fixed.summary)
      if fixed.gave_up then break end
    end
    swarm.fail("still_red", "the build is still red", { notes = notes })
  end,
}
