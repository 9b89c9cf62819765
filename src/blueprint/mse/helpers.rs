//! The words of flow.ir that Lua has no operator for, as Lua functions. A blueprint gets those that
//! its flow uses.

use std::collections::BTreeSet;

/// A function, and the others that it calls.
struct Helper {
    name: &'static str,
    calls: &'static [&'static str],
    text: &'static str,
}

/// In the order in which they are written: a function calls only earlier ones.
const HELPERS: &[Helper] = &[
    Helper {
        name: "is_list",
        calls: &[],
        text: "local function is_list(value)
  return type(value) == \"table\" and (value[1] ~= nil or getmetatable(value) ~= nil)
end",
    },
    Helper {
        name: "get",
        calls: &[],
        text: "-- Reads a path. A missing key raises `path_not_found`.
local function get(doc, ...)
  local value = doc
  for _, key in { ... } do
    value = if type(value) == \"table\" then value[key] else nil
    if value == nil then
      swarm.fail(\"path_not_found\", \"no value at $.\" .. table.concat({ ... }, \".\"))
    end
  end
  return value
end",
    },
    Helper {
        name: "put",
        calls: &["is_list", "null"],
        text: "-- Returns a copy of the document with a value at a path. The document itself stays as it is.
local function put(doc, value, key, ...)
  if key == nil then
    return if value == nil then null else value
  end
  if doc ~= nil and doc ~= null and (type(doc) ~= \"table\" or is_list(doc)) then
    swarm.fail(\"type_error\", \"cannot write the key \" .. key .. \" into what is no object\")
  end
  local copy = if type(doc) == \"table\" then table.clone(doc) else {}
  copy[key] = put(copy[key], value, ...)
  return copy
end",
    },
    Helper {
        name: "begin",
        calls: &["is_list"],
        text: "-- Lays the input over the default document.
local function begin(default, input)
  if type(input) ~= \"table\" or is_list(input) then
    return if input == nil then default else input
  end
  local doc = table.clone(default)
  for key, value in input do
    doc[key] = value
  end
  return doc
end",
    },
    Helper {
        name: "truthy",
        calls: &["null"],
        text: "local function truthy(value)
  return value ~= nil and value ~= null and value ~= false
end",
    },
    Helper {
        name: "boolean",
        calls: &[],
        text: "local function boolean(value)
  if type(value) ~= \"boolean\" then
    swarm.fail(\"type_error\", \"a branch needs true or false\")
  end
  return value
end",
    },
    Helper {
        name: "same",
        calls: &["is_list"],
        text: "local function same(a, b)
  if type(a) ~= \"table\" or type(b) ~= \"table\" then
    return a == b
  end
  if is_list(a) ~= is_list(b) then
    return false
  end
  for key, value in a do
    if not same(value, b[key]) then
      return false
    end
  end
  for key in b do
    if a[key] == nil then
      return false
    end
  end
  return true
end",
    },
    Helper {
        name: "exists",
        calls: &["null"],
        text: "-- Whether an expression has a value other than null; a missing path is none.
local function exists(read)
  local ok, value = pcall(read)
  if ok then
    return value ~= nil and value ~= null
  elseif type(value) == \"table\" and value.kind == \"path_not_found\" then
    return false
  end
  error(value, 0)
end",
    },
    Helper {
        name: "number",
        calls: &[],
        text: "local function number(value)
  if type(value) ~= \"number\" then
    swarm.fail(\"type_error\", \"a number is expected, not a \" .. type(value))
  end
  return value
end",
    },
    Helper {
        name: "divisor",
        calls: &["number"],
        text: "local function divisor(value)
  if number(value) == 0 then
    swarm.fail(\"arith_error\", \"division by zero\")
  end
  return value
end",
    },
    Helper {
        name: "len",
        calls: &["is_list"],
        text: "-- The elements of a list, the characters of a string, the keys of an object.
local function len(value)
  if type(value) == \"string\" then
    return utf8.len(value)
  elseif type(value) ~= \"table\" then
    swarm.fail(\"type_error\", \"len: a \" .. type(value) .. \" has no length\")
  elseif is_list(value) then
    return #value
  end
  local count = 0
  for _ in value do
    count += 1
  end
  return count
end",
    },
    Helper {
        name: "list",
        calls: &["is_list"],
        text: "local function list(value)
  if type(value) ~= \"table\" or not (is_list(value) or next(value) == nil) then
    swarm.fail(\"type_error\", \"a list is expected, not a \" .. type(value))
  end
  return value
end",
    },
    Helper {
        name: "contains",
        calls: &["list", "same"],
        text: "local function contains(haystack, needle)
  for _, item in list(haystack) do
    if same(item, needle) then
      return true
    end
  end
  return false
end",
    },
    Helper {
        name: "race_lanes",
        calls: &["list"],
        text: "-- Runs a lane for each item, and returns what the first one that succeeds returns.
local function race_lanes(ctx, items, lane)
  if #list(items) == 0 then
    swarm.fail(\"type_error\", \"a fanout of this kind needs at least one item\")
  end
  local lanes = {}
  for place, item in items do
    lanes[place] = function()
      return lane(item)
    end
  end
  local _, value = ctx:race(lanes)
  return value
end",
    },
    Helper {
        name: "first_lane",
        calls: &["race_lanes"],
        text: "-- Returns what the first lane to end returns, or raises its error.
local function first_lane(ctx, items, lane)
  local first = race_lanes(ctx, items, function(item)
    local ok, value = pcall(lane, item)
    return if ok then { value = value } else { problem = value }
  end)
  if first.problem ~= nil then
    error(first.problem, 0)
  end
  return first.value
end",
    },
    Helper {
        name: "settle_lanes",
        calls: &["list"],
        text: "-- Runs a lane for each item. No error is raised; each lane has a record.
local function settle_lanes(ctx, items, lane)
  local records = {}
  for place, lane_end in ctx:map(list(items), lane, { on_error = \"collect\" }) do
    records[place] = if lane_end.ok
      then { status = \"fulfilled\", value = lane_end.value }
      else { status = \"rejected\", reason = tostring(lane_end.error) }
  end
  return swarm.array(records)
end",
    },
    Helper {
        name: "printed",
        calls: &["is_list"],
        text: "-- Reads what a program printed: a part of its JSON, and whether it reports success.
local function printed(result, format, result_keys, ok_keys)
  local raw = type(result) == \"table\" and result.exit_code ~= nil and result.stdout ~= nil
  if raw then
    local text = string.match(result.stdout, \"^%s*(.-)%s*$\")
    local ok, value = pcall(swarm.json.decode, text)
    if not ok and (format == \"json\" or ok_keys) then
      swarm.fail(\"process\", \"the program did not print JSON\", result)
    elseif not ok then
      return { raw = text, stderr = result.stderr }
    end
    result = value
  end
  local function pick(keys)
    local value = result
    for _, key in keys do
      if type(value) ~= \"table\" then
        return nil
      end
      value = if is_list(value) then value[(tonumber(key) or -1) + 1] else value[key]
    end
    return value
  end
  if ok_keys and pick(ok_keys) ~= true then
    swarm.fail(\"process\", \"the program reported a failure\", result)
  end
  if result_keys then
    local value = pick(result_keys)
    if value == nil then
      swarm.fail(\"process\", \"the program did not print the key of its result\", result)
    end
    return value
  end
  return result
end",
    },
    Helper {
        name: "audited",
        calls: &[],
        text: "-- Lets auditors inspect a result. Their findings are artifacts; they never change the flow.
local function audited(ctx, step, auditors, result)
  for _, auditor in auditors do
    local findings, problem = ctx:try(auditor, {
      kind = \"after_run_audit\",
      step_ref = step,
      ok = true,
      final_value = result,
      instruction = \"Inspect the output of this step for degradations, tool failures and silent fallbacks, \"
        .. \"and report your findings as a JSON object.\",
    })
    if problem then
      ctx:log(\"warn\", \"the audit of \" .. step .. \" failed: \" .. tostring(problem))
    else
      ctx:artifact(\"audit-\" .. step .. \".json\", swarm.json.encode(findings))
    end
  end
  return result
end",
    },
];

/// The functions that a flow needs.
#[derive(Debug, Default)]
pub(crate) struct Helpers {
    used: BTreeSet<&'static str>,
}

impl Helpers {
    /// Notes that the flow uses a function, or the local `null`.
    pub(crate) fn uses(&mut self, name: &'static str) {
        if self.used.insert(name) {
            let calls = HELPERS.iter().find(|it| it.name == name).map_or(&[][..], |it| it.calls);
            for call in calls {
                self.uses(call);
            }
        }
    }

    /// Their text, in order.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        if self.used.contains("null") {
            out.push_str("local null = swarm.null\n");
        }
        for helper in HELPERS.iter().filter(|it| self.used.contains(it.name)) {
            out.push_str(&format!("\n{}\n", helper.text));
        }
        out
    }

    /// The names of all functions that a blueprint may have.
    #[cfg(test)]
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        HELPERS.iter().map(|it| it.name)
    }
}
