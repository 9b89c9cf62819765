-- A job of several hours on another machine. The worker takes it from the queue `video`, keeps its
-- lease with heartbeats, and reports progress. If the machine dies, the job goes to another worker.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "long-job",
  edition = 2,
  description = "Hands a long job to a worker of a queue, and notices when nobody takes it.",
  input = s.object { file = s.string },

  agents = {
    encode = {
      operator = "queue", queue = "video", labels = { gpu = "true" },
      park = "1h",       -- how long the task waits for a worker to take it
      timeout = "6h",    -- how long one attempt may take, from its delivery
      retry = { max_attempts = 3, backoff = "1m" },
      output = s.object { file = s.string, seconds = s.number },
    },
  },

  flow = function(ctx, input)
    local done, err = ctx:try("encode", { file = input.file })
    if done then return done end
    if err.kind == "operator_unavailable" or err.kind == "timeout" then
      swarm.fail("not_encoded", "no worker finished " .. input.file .. ": " .. err.kind)
    end
    error(err)
  end,
}
