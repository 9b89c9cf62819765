-- Starts a run of its own for every repository, eight at a time. Each child has its own history
-- and limits; a child that fails is reported and does not stop the others.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "fan-out",
  edition = 2,
  description = "Calls the blueprint fan-out-item once for every repository.",
  input = s.object { repositories = s.array(s.string) },

  agents = {},

  flow = function(ctx, input)
    local results = ctx:map(input.repositories, function(repository)
      return ctx:call("fan-out-item", { repository = repository })
    end, { concurrency = 8, on_error = "collect" })

    local healthy, failed = swarm.array {}, swarm.array {}
    for place, result in ipairs(results) do
      local name = input.repositories[place]
      if not result.ok then
        table.insert(failed, { repository = name, reason = result.error.message })
      elseif result.value.healthy then
        table.insert(healthy, name)
      end
    end
    return { checked = #results, healthy = healthy, failed = failed }
  end,
}
