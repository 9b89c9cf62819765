//! Templates and expressions that ask for more memory than they may have.

use serde_json::{Value, json};

use crate::support::{Daemon, Shell, send};

/// Expressions that would take gigabytes, each by another way.
const BOMBS: [&str; 8] = [
    "'%10000000000d' | format(1)",
    "'x' | replace('', 'y' * 1000000) | replace('y', 'z' * 1000)",
    "[[[]]] * 99999999",
    "'a\\nb' | indent(9999999999)",
    "(['a'] * 99999) | join('y' * 1000000)",
    "[1] | batch(9999999999, 'x')",
    "[[1]] | tojson(indent=9999999999)",
    "range(99999) | map('replace', '', 'y' * 999999) | list",
];

/// A text that doubles itself with every turn of a loop.
const DOUBLING: &str = "{% set ns = namespace(s='x') %}{% for i in range(64) %}\
                        {% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}";

/// Text that is captured, and never reaches the bounded output.
const CAPTURED: &str = "{% set a %}{% for i in range(99999) %}{% for j in range(99999) %}\
                        0123456789012345678901234567890123456789{% endfor %}{% endfor %}{% endset %}";

fn blueprint(agent: &str, flow: &str) -> String {
    format!(
        r#"local swarm = require("swarm")
           return swarm.blueprint {{
             name = "bomb",
             agents = {{ a = {agent} }},
             flow = {flow},
           }}"#
    )
}

#[tokio::test]
async fn a_template_that_would_take_gigabytes_fails_its_step_and_nothing_else() {
    let shell = Shell::new();
    let daemon = Daemon::start_within(3 << 30, &shell.path("data"), &[]);
    let templates = BOMBS.map(|bomb| format!("{{{{ {bomb} }}}}")).into_iter();
    for template in templates.chain([DOUBLING.into(), CAPTURED.into()]) {
        let quoted = json!(template).to_string();
        let run_agent = "function(ctx) return ctx:run(\"a\", {}) end";
        let sources = [
            blueprint(&format!("{{ operator = \"echo\", prompt = {quoted} }}"), run_agent),
            blueprint(
                &format!("{{ operator = \"process\", command = {{ \"echo\", {quoted} }} }}"),
                run_agent,
            ),
        ];
        for source in sources {
            let run = daemon.run_source(&source, Value::Null).await;
            let view = daemon.ended(&run).await;
            // An echo has no prompt to render; whatever renders it is refused.
            if source.contains("process") {
                assert_eq!(view["status"], "failed", "{template}: {view}");
            }
        }
    }
    for bomb in BOMBS {
        let flow = json!({
            "flow": {"kind": "assign", "id": "x", "value": format!("{{{{ {bomb} }}}}")},
            "agents": {"a": {"operator": "echo"}}, "name": "bomb",
        });
        let (status, view) = send(daemon.post("/v1/runs", &flow)).await;
        if status == 201 {
            let view = daemon.ended(view["id"].as_str().unwrap()).await;
            assert_eq!(view["status"], "failed", "{bomb}: {view}");
        } else {
            assert_eq!(status, 422, "{bomb}: {view}");
        }
    }
    assert!(daemon.resident() < 1 << 30, "{} bytes are resident", daemon.resident());
}
