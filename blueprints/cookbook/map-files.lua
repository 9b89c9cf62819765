-- Counts the lines of every file below a directory, four files at a time. A file that cannot be
-- read is reported and does not stop the others.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "map-files",
  edition = 2,
  description = "Processes every file of a directory with bounded concurrency.",
  input = s.object { path = s.string { default = "." }, glob = s.string { default = "*.lua" } },

  agents = {
    list = {
      operator = "process", check = false, timeout = "1m",
      command = { "find", "{{ path }}", "-type", "f", "-name", "{{ glob }}" },
    },
    count = {
      operator = "process", timeout = "1m", retry = { max_attempts = 2 },
      command = { "sh", "-c", "wc -l < \"$1\"", "count", "{{ file }}" },
      output = s.integer,
    },
  },

  flow = function(ctx, input)
    local listed = ctx:run("list", { path = input.path, glob = input.glob })
    local files = swarm.array {}
    for file in string.gmatch(listed.stdout, "[^\n]+") do table.insert(files, file) end
    table.sort(files)

    local done = 0
    local results = ctx:map(files, function(file)
      local lines = ctx:run("count", { file = file })
      done = done + 1
      ctx:status(done .. " of " .. #files .. " files", { progress = done / #files })
      return lines
    end, { concurrency = 4, on_error = "collect" })

    local lines, failed = 0, swarm.array {}
    for place, result in ipairs(results) do
      if result.ok then lines = lines + result.value else table.insert(failed, files[place]) end
    end
    return { files = #files, lines = lines, failed = failed }
  end,
}
