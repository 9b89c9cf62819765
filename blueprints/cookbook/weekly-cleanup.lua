-- Every Monday at 6:30 in Berlin: lists the old files of a directory, and deletes them if a flag
-- says so. One run makes up for all times at which no daemon was running.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "weekly-cleanup",
  edition = 2,
  description = "Finds files older than some days, on a schedule.",
  input = s.object {
    path = s.string { default = "/tmp" },
    days = s.integer { default = 30, minimum = 1 },
    delete = s.boolean { default = false },
  },
  on = {
    { schedule = "30 6 * * 1", zone = "Europe/Berlin", missed = "once", input = { path = "/tmp", days = 30 } },
  },

  agents = {
    find   = { operator = "process", check = false, timeout = "10m",
               command = { "find", "{{ path }}", "-xdev", "-type", "f", "-mtime", "+{{ days }}" } },
    delete = { operator = "process", timeout = "1m", command = { "rm", "-f", "--", "{{ file }}" }, check = false },
  },

  flow = function(ctx, input)
    -- A run that was started by hand has no scheduled time.
    local due = ctx.trigger and ctx.trigger.at
    local found = ctx:run("find", { path = input.path, days = input.days })
    local files = swarm.array {}
    for file in string.gmatch(found.stdout, "[^\n]+") do table.insert(files, file) end
    table.sort(files)
    if input.delete then
      ctx:map(files, function(file) return ctx:run("delete", { file = file }) end, { concurrency = 8 })
    end
    return { due = due, files = files, deleted = input.delete }
  end,
}
