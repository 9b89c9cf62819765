-- Three reviewers look at a change side by side, each with its own question. Two of them must
-- pass it; a reviewer that fails or does not answer in time does not count.
local swarm = require("swarm")
local s = swarm.schema

local QUESTIONS = {
  { focus = "correctness", question = "Does the change do what it claims?" },
  { focus = "security", question = "Does the change open a hole?" },
  { focus = "tests", question = "Would a test notice if the change broke?" },
}

return swarm.blueprint {
  name = "review-quorum",
  edition = 2,
  description = "Accepts a change when two of three reviewers pass it.",
  input = s.object { diff = s.string, needed = s.integer { default = 2, minimum = 1, maximum = 3 } },

  agents = {
    reviewer = {
      operator = "main-ai", worker = { subagent_type = "reviewer" }, timeout = "15m", park = "10m",
      prompt = "{{ question }}\n\n{{ diff }}",
      output = s.object { verdict = s.enum { "pass", "block" }, reason = s.string },
    },
  },

  flow = function(ctx, input)
    local reviews = ctx:map(QUESTIONS, function(it)
      return ctx:run("reviewer", { question = it.question, diff = input.diff }, { summary = it.focus })
    end, { on_error = "collect" })

    local passed, answered, reasons = 0, 0, swarm.array {}
    for place, review in ipairs(reviews) do
      if review.ok then
        answered = answered + 1
        if review.value.verdict == "pass" then
          passed = passed + 1
        else
          table.insert(reasons, QUESTIONS[place].focus .. ": " .. review.value.reason)
        end
      end
    end
    if answered < input.needed then
      swarm.fail("no_quorum", "only " .. answered .. " of " .. #QUESTIONS .. " reviewers answered")
    end
    return { accepted = passed >= input.needed, passed = passed, reasons = reasons }
  end,
}
