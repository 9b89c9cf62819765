-- The same question about many files, and one answer from all of them.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "map-reduce",
  edition = 2,
  description = "Asks the same of every file of a repository, in batches, and sums it up.",
  input = s.object {
    question = s.string,
    pattern = s.string { default = "*.lua" },
    batch = s.integer { default = 10, minimum = 1 },
  },

  agents = {
    files  = { operator = "process", command = { "git", "ls-files", "--", "{{ pattern }}" }, timeout = "1m",
               input = s.object { pattern = s.string } },
    reader = { operator = "main-ai", worker = { subagent_type = "reader", tools = { "Read" } },
               output = s.object { notes = s.array(s.string) }, retry = { max_attempts = 2 } },
    summer = { operator = "main-ai", worker = { subagent_type = "writer" }, output = s.object { summary = s.string } },
  },

  flow = function(ctx, input)
    local listed = ctx:run("files", { pattern = input.pattern })
    local batches, batch = swarm.array {}, nil
    for path in string.gmatch(listed.stdout, "[^\n]+") do
      if batch == nil or #batch == input.batch then
        batch = swarm.array {}
        table.insert(batches, batch)
      end
      table.insert(batch, path)
    end
    if #batches == 0 then return { files = 0, summary = "no file matches" } end

    local done = 0
    local notes = ctx:map(batches, function(paths)
      local got = ctx:run("reader", { question = input.question, files = paths })
      done = done + 1
      ctx:status(done .. " of " .. #batches .. " batches", { progress = done / #batches })
      return got.notes
    end, { concurrency = 4 })

    -- Many notes are summed up in a tree, so that no summary has too much to read.
    while #notes > 1 do
      local pairs_of = swarm.array {}
      for i = 1, #notes, 4 do
        local group = swarm.array {}
        for j = i, math.min(i + 3, #notes) do table.insert(group, notes[j]) end
        table.insert(pairs_of, group)
      end
      notes = ctx:map(pairs_of, function(group)
        return swarm.array { ctx:run("summer", { question = input.question, notes = group }).summary }
      end)
    end
    return { batches = #batches, summary = table.concat(notes[1], "\n") }
  end,
}
