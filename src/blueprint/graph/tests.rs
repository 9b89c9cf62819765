use serde_json::json;

use super::*;

fn table() -> GraphPart {
    let flow = json!({"kind": "seq", "children": [
        {"kind": "step", "id": "plan", "agent": "planner"},
        {"kind": "map", "over": "plan.steps", "as": "step", "body": {"kind": "step", "agent": "coder"}},
        {"kind": "branch", "if": "plan.ok", "then": {"kind": "approve", "title": "Ship \"it\"?"},
         "else": {"kind": "fail", "error": "blocked"}},
        {"kind": "parallel", "branches": {"a": {"kind": "sleep", "for": "5m"}, "b": {"kind": "wait", "signal": "go"}}},
    ]});
    GraphPart::new(Shape::Seq, "review", vec![(String::new(), table::part(&flow, "/flow"))])
}

#[test]
fn a_table_is_drawn_as_a_tree() {
    insta::assert_snapshot!(table().tree(), @r#"
    review
    └─ seq
       ├─ plan: run planner
       ├─ map step over plan.steps
       │  └─ run coder
       ├─ if plan.ok
       │  ├─ then → approve Ship "it"?
       │  └─ else → fail blocked
       └─ parallel
          ├─ a → sleep 5m
          └─ b → wait for go
    "#);
}

#[test]
fn a_table_is_drawn_in_mermaid_and_in_dot() {
    let part = table();
    insta::assert_snapshot!(part.mermaid(), @r#"
    flowchart TD
      n0(["review"])
      n1["plan: run planner"]
      n2["map step over plan.steps"]
      n3["run coder"]
      n4{"if plan.ok"}
      n5["approve Ship #quot;it#quot;?"]
      n6(["fail blocked"])
      n7["parallel"]
      n8["sleep 5m"]
      n9["wait for go"]
      n10(["end"])
      n0 --> n1
      n1 --> n2
      n2 -->|"each"| n3
      n3 -->|"again"| n2
      n2 -->|"done"| n4
      n4 -->|"then"| n5
      n4 -->|"else"| n6
      n5 --> n7
      n7 -->|"a"| n8
      n7 -->|"b"| n9
      n8 --> n10
      n9 --> n10
    "#);
    let dot = part.dot();
    assert!(dot.contains(r#"n5 [shape=box, label="approve Ship \"it\"?"];"#), "{dot}");
    assert!(dot.contains("n4 -> n6 [label=\"else\"];"), "{dot}");
}

#[test]
fn of_a_function_the_calls_are_drawn_within_what_stands_around_them() {
    let source = r#"
return swarm.blueprint {
  agents = { a = { operator = "lua", fn = function(input) return if input then 1 else 2 end } },
  flow = function(ctx, input)
    local plan = ctx:run("planner", { x = (input.x) })
    local out = ctx:map(plan.steps, function(step)
      return ctx:run("coder", { step = step })
    end)
    for round = 1, 3 do
      local y = if round > 1 then 1 else 2
      if y == 1 then ctx:sleep("5m") elseif y == 2 then ctx:run(name) else ctx:log("info", "x") end
    end
    ctx:all { a = function() return ctx:run("x") end, b = function() return ctx:wait("go") end }
    return out
  end,
}"#;
    let start = Outline::of(source).spot("/flow").map(|spot| spot.value);
    let part = GraphPart::new(Shape::Seq, "t", script::parts(source, start));
    insta::assert_snapshot!(part.tree(), @r"
    t
    ├─ run planner
    ├─ map
    │  └─ run coder
    ├─ for round = 1, 3
    │  └─ if y == 1
    │     ├─ then → sleep 5m
    │     └─ elseif → run <name>
    └─ all
       ├─ run x
       └─ wait go
    ");
}

fn drawn(source: &str) -> GraphPart {
    let start = Outline::of(source).spot("/flow").map(|spot| spot.value);
    GraphPart::new(Shape::Seq, "t", script::parts(source, start))
}

#[test]
fn a_local_function_is_drawn_where_it_is_called_or_passed() {
    let part = drawn(
        r#"
local function review(ctx, change)
  if change.big then ctx:approve("Merge?") end
  return ctx:run("reviewer", change)
end
local unused = function(ctx) ctx:run("unused") end
local function main(ctx, input)
  local function one(order) return ctx:run("packer", order) end
  local undo = function() ctx:run("refund") end
  ctx:defer(undo)
  ctx:map(input.orders, one)
  ctx:all { a = one, b = function() return one(ctx:run("pick")) end }
  local who = input.who
  ctx:try(who, {})
  ctx:run(input.steps[1].agent or "x")
  while true do review(ctx, { review = 1 }) end
end
return swarm.blueprint { name = "t", agents = {}, flow = main }"#,
    );
    insta::assert_snapshot!(part.tree(), @r#"
    t
    ├─ defer, if the flow fails
    │  └─ run refund
    ├─ map
    │  └─ run packer
    ├─ all
    │  ├─ run packer
    │  ├─ run pick
    │  └─ run packer
    ├─ run <who>
    ├─ run <input.steps[1].agent or "x">
    └─ while true
       ├─ if change.big
       │  └─ then → approve Merge?
       └─ run reviewer
    "#);
    let chart = part.mermaid();
    assert!(chart.contains("-->|\"on failure\"| n2") && chart.contains("n1 --> n3"), "{chart}");
}

#[test]
fn functions_that_call_themselves_or_each_other_end() {
    let part = drawn(
        r#"
local function odd(ctx, n) return even(ctx, ctx:run("half", n)) end
function even(ctx, n) if n > 0 then odd(ctx, n) end return ctx:run("last") end
return swarm.blueprint { flow = function(ctx) return even(ctx, 3) end }"#,
    );
    insta::assert_snapshot!(part.tree(), @r"
    t
    ├─ if n > 0
    │  └─ then → seq
    │     ├─ run half
    │     └─ even again
    └─ run last
    ");
    let many: String = (0..40)
        .map(|n| format!("local function f{n}(ctx) f{}(ctx) f{}(ctx) end\n", n + 1, n + 1))
        .collect();
    let source = format!("{many}return swarm.blueprint {{ flow = function(ctx) f0(ctx) end }}");
    assert!(drawn(&source).tree().lines().count() <= 2_002);
}

#[test]
fn a_picture_has_every_label_within_its_frame_and_nothing_that_breaks_it() {
    let part = GraphPart::new(
        Shape::Seq,
        "a <b> & \"c\"",
        vec![(String::new(), table()), ("then".into(), GraphPart::leaf("x".repeat(300)))],
    );
    let svg = part.svg();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    for label in
        ["plan: run planner", "↻ map step over plan.steps", "then", "else", "sleep 5m", "end"]
    {
        assert!(svg.contains(&format!(">{label}</text>")), "{label}: {svg}");
    }
    assert!(svg.contains(">a &lt;b&gt; &amp; \"c\"</text>") && svg.contains("x…<"), "{svg}");
    let number = |line: &str, name: &str| -> usize {
        let rest = line.split(&format!(" {name}=\"")).nth(1).expect(name);
        rest.split('"').next().unwrap().parse().unwrap()
    };
    let (w, h) = (number(&svg, "width"), number(&svg, "height"));
    let rects = svg.lines().filter(|line| line.starts_with("<rect x="));
    for rect in rects {
        assert!(number(rect, "x") + number(rect, "width") <= w, "{rect}");
        assert!(number(rect, "y") + number(rect, "height") <= h, "{rect}");
    }
    let opened = svg.matches("<text ").count();
    assert_eq!(opened, svg.matches("</text>").count());
}
