local t = require("swarm.test")

local function started(files)
  local run = t.start("map-reduce.lua", { question = "what is it for", batch = 2 })
  run:mock("files", { exit_code = 0, stdout = files, stderr = "" })
  run:mock("reader", function(input) return { notes = { table.concat(input.files, "+") } } end)
  run:mock("summer", function(input)
    local all = {}
    for _, notes in ipairs(input.notes) do table.insert(all, table.concat(notes, ",")) end
    return { summary = "(" .. table.concat(all, " ") .. ")" }
  end)
  return run
end

t.test("files are read in batches and summed up in a tree", function()
  local run = started("a\nb\nc\nd\ne\n")
  t.equal(run:finish(), { batches = 3, summary = "(a+b c+d e)" })
  t.equal(run:count("reader"), 3)
  t.equal(run:count("summer"), 1)
end)

t.test("one batch needs no sum, and none no reader", function()
  t.equal(started("a\n"):finish(), { batches = 1, summary = "a" })
  local none = started("")
  t.match(none:finish(), { files = 0 })
  t.equal(none:count("reader"), 0)
end)
