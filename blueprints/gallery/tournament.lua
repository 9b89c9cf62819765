-- Several candidates, judged in pairs until one is left.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "tournament",
  edition = 2,
  description = "Lets several authors try, and a judge choose between two at a time until one is left.",
  input = s.object { task = s.string, candidates = s.integer { default = 4, minimum = 2, maximum = 16 } },

  agents = {
    author = { operator = "main-ai", worker = { subagent_type = "author" }, timeout = "30m",
               output = s.object { text = s.string } },
    judge  = { operator = "main-ai", worker = { subagent_type = "judge" },
               system = "You choose the better of two answers. You do not know who wrote them.",
               output = s.object { better = s.enum { "first", "second" }, why = s.string } },
  },

  flow = function(ctx, input)
    local numbers = {}
    for i = 1, input.candidates do numbers[i] = i end
    local left = swarm.array {}
    local drafts = ctx:map(numbers, function(i)
      return ctx:run("author", { task = input.task, style = i })
    end, { on_error = "collect" })
    for i, draft in ipairs(drafts) do
      if draft.ok then table.insert(left, { author = i, text = draft.value.text }) end
    end
    if #left == 0 then swarm.fail("no_candidate", "no author delivered anything") end

    local rounds = 0
    while #left > 1 do
      rounds = rounds + 1
      local matches, next_round = {}, swarm.array {}
      for i = 1, #left - 1, 2 do table.insert(matches, { left[i], left[i + 1] }) end
      local bye = #left % 2 == 1 and left[#left] or nil
      local winners = ctx:map(matches, function(match)
        -- Which of them comes first is drawn, so that the place decides nothing.
        local swap = ctx:random(2) == 2
        local a, b = match[1], match[2]
        if swap then a, b = b, a end
        local got = ctx:run("judge", { task = input.task, first = a.text, second = b.text })
        return got.better == "first" and a or b
      end)
      for _, winner in ipairs(winners) do table.insert(next_round, winner) end
      if bye then table.insert(next_round, bye) end
      left = next_round
    end
    return { text = left[1].text, author = left[1].author, rounds = rounds }
  end,
}
