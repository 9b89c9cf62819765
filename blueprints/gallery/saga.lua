-- Three bookings that belong together: if one fails, those before it are undone, latest first.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "saga",
  edition = 2,
  description = "Books a trip in three places; what was booked is undone if a later booking fails.",
  input = s.object { from = s.string, to = s.string, day = s.string },

  agents = {
    book   = { operator = "queue", queue = "bookings", timeout = "2m",
               retry = { max_attempts = 3, backoff = "5s" }, output = s.object { booking = s.string } },
    undo   = { operator = "queue", queue = "bookings", timeout = "2m", retry = { max_attempts = 10, backoff = "10s" } },
  },

  flow = function(ctx, input)
    local booked = {}
    for _, what in ipairs { "flight", "hotel", "car" } do
      ctx:status("booking the " .. what)
      -- The key lets the other side tell a repeated request from a new one.
      local got = ctx:run("book", { what = what, from = input.from, to = input.to, day = input.day },
        { idempotency_key = ctx.run_id .. "/" .. what })
      booked[what] = got.booking
      ctx:defer(function() ctx:run("undo", { what = what, booking = got.booking }) end)
    end
    return booked
  end,
}
