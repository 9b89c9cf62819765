local swarm = require("swarm")

return swarm.blueprint {
  name = "failing_job",
  edition = 2,
  description = "Fails after a second.",
  mcp = true,
  flow = function(ctx)
    ctx:sleep("1s")
    error("the job failed")
  end,
}
