-- Starts a deployment in another system and waits until that system reports back with a signal.
-- The run waits without cost, also over restarts of the daemon.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "deploy-webhook",
  edition = 2,
  description = "Starts a deployment and waits for the webhook that reports its end.",
  input = s.object { version = s.string },

  agents = {
    -- A real one would be an `http` operator or a script that calls the deployment system.
    start = { operator = "process", timeout = "1m",
              command = { "echo", "deploy {{ version }}, report to {{ run_id }}" } },
  },

  flow = function(ctx, input)
    ctx:run("start", { version = input.version, run_id = ctx.run_id })
    ctx:status("waiting for the deployment of " .. input.version)

    local report, why = ctx:wait("deployed", { timeout = "30m" })
    if why == "timeout" then
      swarm.fail("no_report", "no report about " .. input.version .. " within 30 minutes")
    end
    if report.state ~= "ok" then swarm.fail("deploy_failed", report.message or report.state) end
    return { version = input.version, url = report.url }
  end,
}
