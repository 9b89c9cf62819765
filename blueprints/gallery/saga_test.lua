local t = require("swarm.test")

local trip = { from = "Lisbon", to = "Rio", day = "2027-01-01" }

t.test("three bookings are one trip", function()
  local run = t.start("saga.lua", trip)
  run:mock("book", function(input) return { booking = input.what .. "-1" } end)
  t.equal(run:finish(), { flight = "flight-1", hotel = "hotel-1", car = "car-1" })
  t.equal(run:count("undo"), 0)
end)

t.test("a booking that fails undoes those before it, latest first", function()
  local run = t.start("saga.lua", trip)
  run:mock("book", function(input)
    if input.what == "car" then error({ kind = "worker", message = "no car left" }) end
    return { booking = input.what .. "-1" }
  end)
  run:mock("undo", { ok = true })
  t.match(run:fails("worker"), { message = "no car left" })
  t.equal(run:inputs("undo"), { { what = "hotel", booking = "hotel-1" }, { what = "flight", booking = "flight-1" } })
end)

t.test("a cancel undoes what was booked", function()
  local run = t.start("saga.lua", trip)
  run:mock_sequence("book", { { booking = "f" }, t.failure { message = "busy", retryable = true }, { booking = "h" } })
  run:mock("undo", { ok = true })
  t.equal(run:status(), "waiting")
  run:cancel("changed plans")
  run:fails("canceled")
  t.equal(run:count("undo"), 1)
end)
