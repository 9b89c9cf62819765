-- A report on a directory of code: moonswarm run blueprints/repo-report.lua path=.
-- Child processes read the files and report over HTTP; the flow adds up their results.
local swarm = require("swarm")
local s = swarm.schema

local BATCH = 200
local TODOS = 50

local LANGUAGES = {
  bash = "Shell", c = "C", cc = "C++", clj = "Clojure", cpp = "C++", cs = "C#", css = "CSS", dart = "Dart",
  ex = "Elixir", exs = "Elixir", go = "Go", h = "C", hpp = "C++", hs = "Haskell", html = "HTML", java = "Java",
  js = "JavaScript", json = "JSON", jsx = "JavaScript", kt = "Kotlin", lock = "Lock file", lua = "Lua",
  luau = "Lua", md = "Markdown", mjs = "JavaScript", ml = "OCaml", nix = "Nix", php = "PHP", pl = "Perl",
  proto = "Protocol Buffers", py = "Python", pyi = "Python", r = "R", rb = "Ruby", rs = "Rust", scala = "Scala",
  scss = "CSS", sh = "Shell", sql = "SQL", svelte = "Svelte", swift = "Swift", toml = "TOML", ts = "TypeScript",
  tsx = "TypeScript", txt = "Text", vue = "Vue", xml = "XML", yaml = "YAML", yml = "YAML", zig = "Zig",
}

local function language(path)
  local name = string.match(path, "([^/]*)$") or path
  if name == "Makefile" or name == "makefile" then return "Makefile" end
  if string.find(name, "^Dockerfile") then return "Dockerfile" end
  local ext = string.match(name, "^.+%.([%w_]+)$")
  return ext and LANGUAGES[string.lower(ext)] or "Other"
end

-- Escapes untrusted text for Markdown: one line, and no character that ends a code span.
local function code(text)
  text = string.gsub(string.gsub(text, "%c", " "), "`", "'")
  return "`" .. text .. "`"
end

local function cell(text)
  return (string.gsub(code(text), "|", "\\|"))
end

local function push(list, value) list[#list + 1] = value end

local function by_lines(a, b)
  if a.lines ~= b.lines then return a.lines > b.lines end
  return a.name < b.name
end

-- The sums of one batch, computed as each batch arrives, so that no part of the flow takes long.
local function summary(batch)
  local sum = { files = 0, lines = 0, binary = 0, skipped = batch.skipped, todos_found = batch.todos_found,
    languages = {}, longest = {}, todos = batch.todos }
  for _, file in ipairs(batch.files) do
    local path, lines = file[1], file[2]
    if lines < 0 then
      sum.binary = sum.binary + 1
    else
      sum.files, sum.lines = sum.files + 1, sum.lines + lines
      local name = language(path)
      local of = sum.languages[name] or { name = name, files = 0, lines = 0 }
      of.files, of.lines = of.files + 1, of.lines + lines
      sum.languages[name] = of
      push(sum.longest, { name = path, lines = lines })
    end
  end
  table.sort(sum.longest, by_lines)
  while #sum.longest > 10 do sum.longest[#sum.longest] = nil end
  return sum
end

local function add_up(summaries)
  local sum = { files = 0, lines = 0, binary = 0, skipped = 0, todos_found = 0 }
  local languages, longest, todos = {}, {}, {}
  for _, part in ipairs(summaries) do
    for key in pairs(sum) do sum[key] = sum[key] + part[key] end
    for name, more in pairs(part.languages) do
      local of = languages[name] or { name = name, files = 0, lines = 0 }
      of.files, of.lines = of.files + more.files, of.lines + more.lines
      languages[name] = of
    end
    for _, file in ipairs(part.longest) do push(longest, file) end
    for _, todo in ipairs(part.todos) do
      if #todos < TODOS then push(todos, todo) end
    end
  end
  table.sort(longest, by_lines)
  while #longest > 10 do longest[#longest] = nil end
  local ranked = {}
  for _, of in pairs(languages) do push(ranked, of) end
  table.sort(ranked, by_lines)
  return sum, ranked, longest, todos
end

local function render(root, listing, sum, languages, longest, todos, churn)
  local out = { "# Report on " .. code(root), "" }
  push(out, string.format("%d text files with %d lines, %d binary or huge files, %d symbolic links.",
    sum.files, sum.lines, sum.binary, listing.links))
  if sum.skipped > 0 then push(out, string.format("%d files could not be read.", sum.skipped)) end

  push(out, "\n## Languages\n")
  if #languages == 0 then
    push(out, "There are no text files.")
  else
    push(out, "| Language | Files | Lines |\n|---|---:|---:|")
    for _, of in ipairs(languages) do
      push(out, string.format("| %s | %d | %d |", of.name, of.files, of.lines))
    end
  end

  push(out, "\n## Longest files\n")
  if #longest == 0 then push(out, "None.") end
  for _, file in ipairs(longest) do push(out, string.format("- %s: %d lines", code(file.name), file.lines)) end

  push(out, "\n## To do\n")
  if #todos == 0 then push(out, "Nothing is marked.") end
  for _, todo in ipairs(todos) do
    push(out, string.format("- %s:%d: %s", code(todo[1]), todo[2], code(todo[3])))
  end
  if sum.todos_found > #todos then push(out, string.format("- and %d more", sum.todos_found - #todos)) end

  push(out, "\n## Churn in the last 90 days\n")
  if not churn.git then
    push(out, "There is no git history here.")
  elseif #churn.files == 0 then
    push(out, "Nothing changed.")
  else
    push(out, "| File | Commits | Added | Deleted |\n|---|---:|---:|---:|")
    for _, row in ipairs(churn.files) do
      push(out, string.format("| %s | %d | %d | %d |", cell(row[1]), row[2], row[3], row[4]))
    end
  end
  return table.concat(out, "\n") .. "\n"
end

local function worker(command, concurrency)
  return { operator = "process", command = command, timeout = "10m", max_concurrency = concurrency }
end

return swarm.blueprint {
  name = "repo-report",
  edition = 2,
  description = "Files, lines, longest files, to-dos and churn of a directory of code.",
  input = s.object { path = s.string { default = "." } },

  agents = {
    probe           = { operator = "process", command = { "python3", "--version" }, check = false, timeout = "30s" },
    survey          = worker({ "python3", "{{ bundle }}/survey.py" }, 2),
    count           = worker({ "python3", "{{ bundle }}/worker.py" }, 6),
    built_in_survey = worker({ "{{ moonswarm }}", "report-worker" }, 2),
    built_in_count  = worker({ "{{ moonswarm }}", "report-worker" }, 6),
  },

  flow = function(ctx, input)
    local python = ctx:try("probe")
    local survey, count = "survey", "count"
    if not python or python.exit_code ~= 0 then
      survey, count = "built_in_survey", "built_in_count"
      ctx:log("info", "python3 not found: counting with the built-in worker")
      ctx:status("python3 not found: counting with the built-in worker")
    else
      ctx:status("listing files")
    end

    local root = input.path
    local found = ctx:all {
      listing = function() return ctx:run(survey, { mode = "list", root = root }) end,
      churn   = function() return ctx:run(survey, { mode = "churn", root = root }) end,
    }

    local files, batches = found.listing.files, {}
    for first = 1, #files, BATCH do
      push(batches, { mode = "count", root = root,
        files = table.move(files, first, math.min(first + BATCH - 1, #files), 1, {}) })
    end
    local done = 0
    local counted = ctx:map(batches, function(batch)
      local result = summary(ctx:run(count, batch))
      done = done + 1
      ctx:status(string.format("counted %d of %d batches", done, #batches), { progress = done / #batches })
      return result
    end, { concurrency = 6 })

    local sum, languages, longest, todos = add_up(counted)
    local report = render(root, found.listing, sum, languages, longest, todos, found.churn)
    ctx:artifact("report.md", report)
    return report
  end,
}
