//! Flows as JSON, and lines of Lua, as a person tries them.

use serde_json::json;

use crate::support::Shell;

const FLOW: &str = r#"{
  "name": "double",
  "agents": {"e": {"operator": "echo"}},
  "flow": {"kind": "seq", "children": [
    {"kind": "map", "id": "twice", "over": "input.list", "as": "n",
     "body": {"kind": "step", "agent": "e", "input": "{{ n * 2 }}"}},
    {"kind": "assign", "value": {"twice": "{{ twice }}", "sum": "{{ twice | sum }}"}}
  ]}
}"#;

#[test]
fn a_flow_as_json_is_checked_drawn_and_run() {
    let shell = Shell::new();
    shell.write("double.json", FLOW);
    shell.run(&["check", "double.json"]).ok().says(&["no findings"]);
    let drawn = shell.run(&["graph", "double.json"]).ok();
    assert!(drawn.stdout.contains("map n over input.list"), "{drawn:?}");
    let done = shell.run(&["run", "double.json", "list=[1,2,3]"]).ok();
    assert_eq!(done.json(), json!({"twice": [2, 4, 6], "sum": 12}));
    shell.write("bad.json", FLOW.replace("input.list", "inputs.list"));
    let found = shell.run(&["check", "bad.json", "--format", "github"]).exits(3);
    assert!(found.stdout.contains("::error file=bad.json,line=5,"), "{found:?}");
    assert!(found.stdout.contains("MS-B072"), "{found:?}");
}
