local t = require("swarm.test")

local function started()
  local run = t.start("deploy-webhook.lua", { version = "1.2.0" })
  run:mock("start", { ok = true })
  return run
end

t.test("the report ends the wait", function()
  local run = started()
  run:advance("10m")
  run:signal("deployed", { state = "ok", url = "https://example.com" })
  t.equal(run:finish(), { version = "1.2.0", url = "https://example.com" })
end)

t.test("a failed deployment fails the run", function()
  local run = started()
  run:signal("deployed", { state = "failed", message = "health check" })
  t.equal(run:fails("deploy_failed").message, "health check")
end)

t.test("no report within 30 minutes fails the run", function()
  local run = started()
  t.equal(run:fails("no_report").message, "no report about 1.2.0 within 30 minutes")
end)
