-- Every workday at seven: what happened since yesterday, as one page. The flow is a table.
local swarm = require("swarm")
local s, n = swarm.schema, swarm.nodes

return swarm.blueprint {
  name = "nightly-report",
  edition = 2,
  description = "Gathers what happened since yesterday and writes one page, every workday at seven.",
  input = s.object { since = s.string { default = "1 day ago" } },
  on = { { schedule = "0 7 * * 1-5", zone = "Europe/Berlin", missed = "once", input = { since = "1 day ago" } } },

  agents = {
    commits = { operator = "process", command = { "git", "log", "--oneline", "--since={{ since }}" },
                input = s.object { since = s.string }, timeout = "1m" },
    open    = { operator = "process", command = { "sh", "-c", "${OPEN_ISSUES_COMMAND:-true}" }, timeout = "1m" },
    writer  = { operator = "main-ai", worker = { subagent_type = "writer" }, output = s.object { text = s.string } },
    send    = { operator = "queue", queue = "mail", retry = { max_attempts = 5, backoff = "1m" }, timeout = "5m" },
  },

  flow = n.seq {
    n.parallel {
      n.step { id = "commits", agent = "commits", input = { since = "{{ input.since }}" } },
      n.try { id = "open", body = n.step { agent = "open" }, catch = n.assign { value = { stdout = "(not available)" } } },
    },
    n.branch { if_ = "commits.stdout | trim == ''",
      then_ = n.assign { value = { sent = false, why = "nothing happened" } },
      else_ = n.seq {
        n.step { id = "report", agent = "writer", input = { commits = "{{ commits.stdout }}", open = "{{ open.stdout }}" } },
        n.step { agent = "send", input = { subject = "Since {{ input.since }}", text = "{{ report.text }}" } },
        n.assign { value = { sent = true } },
      },
    },
  },
}
