use std::collections::BTreeMap;

use serde_json::json;

use super::*;

fn slots(input: Value) -> Map<String, Value> {
    let run_input = json!({"issue": "crash"});
    TaskSlots { input: &input, run_input: &run_input, run_id: "r1", agent: "coder", attempt: 2 }
        .to_map()
}

fn render(template: &str, input: Value) -> Result<String, TemplateError> {
    render_system(template, &slots(input))
}

#[test]
fn every_slot_is_there() {
    let template = "{{ agent }}/{{ attempt }} {{ run.id }} {{ run.input.issue | upper }} {{ input.step }}={{ step }}";
    assert_eq!(render(template, json!({"step": "x"})).unwrap(), "coder/2 r1 CRASH x=x");
    assert_eq!(render("{{ directive }} {{ input }}", json!("go")).unwrap(), "go go");
    assert_eq!(render("{{ directive | length }}", json!([1, 2])).unwrap(), "2");
}

#[test]
fn fixed_slots_win_over_keys_of_the_input() {
    assert_eq!(render("{{ agent }}", json!({"agent": "evil"})).unwrap(), "coder");
    assert_eq!(render("{{ input.agent }}", json!({"agent": "evil"})).unwrap(), "evil");
}

#[test]
fn a_value_is_put_in_as_it_is_and_never_rendered() {
    let input = json!({"x": "{{ run.id }} <b> & {% raw %}"});
    assert_eq!(render("{{ x }}", input).unwrap(), "{{ run.id }} <b> & {% raw %}");
}

#[test]
fn an_undefined_name_is_an_error_with_its_line() {
    let error = render("a\nb {{ nope }}", json!({})).unwrap_err();
    assert_eq!(error.line, Some(2));
    assert!(
        error.to_string().starts_with("render the template at line 2: undefined value"),
        "{error}"
    );
    assert!(render("{{ input.nope }}", json!({})).is_err());
    assert_eq!(render("{{ nope | default('x') }}", json!({})).unwrap(), "x");
}

#[test]
fn output_work_and_recursion_are_bounded() {
    let error = render("{{ 'x' * 2000000 }}", json!({})).unwrap_err();
    assert_eq!(error.message, "the text is longer than 1 MiB");
    assert_eq!(render("{{ 'x' * 1048576 }}", json!({})).unwrap().len(), MAX_RENDERED_BYTES);
    let nested = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    assert!(render(nested, json!({})).unwrap_err().message.contains("fuel"));
    let recursive = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(render(recursive, json!({})).is_err());
    assert!(render("{{ 'x' * 10000000000 }}", json!({})).is_err());
}

#[test]
fn includes_come_from_the_bundle_only() {
    let files =
        [("m.lua", ""), ("p/rules.md", "for {{ agent }}"), ("self.md", "{% include 'self.md' %}")];
    let files: BTreeMap<_, _> = files.map(|(path, text)| (path.to_owned(), text.into())).into();
    let templates = Templates::new(&Bundle::from_files(files, None).unwrap());
    let render = |template: &str| templates.render(template, &slots(json!({})));
    assert_eq!(render(r#"Rules {% include "p/rules.md" %}"#).unwrap(), "Rules for coder");
    assert_eq!(render(r#"Rules {% include "./p/rules.md" %}"#).unwrap(), "Rules for coder");
    for outside in ["/etc/hostname", "../x.md", "none.md"] {
        assert!(render(&format!("{{% include '{outside}' %}}")).is_err(), "{outside}");
    }
    assert!(render("{% include 'self.md' %}").is_err());
}

#[test]
fn names_from_outside_are_told_from_a_templates_own() {
    let templates = Templates::bare();
    let names = templates
        .undeclared("{% set a = 1 %}{% for x in input.steps %}{{ x }}{{ a }}{{ run.id }}{% endfor %}{{ range(3) }}{{ b }}")
        .unwrap();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["b", "input.steps", "run.id"]);
    let error = templates.undeclared("x\n{{ a").unwrap_err();
    assert_eq!(error.line, Some(2));
}

#[test]
fn the_default_prompt_is_the_text_or_pretty_json() {
    assert_eq!(default_prompt(&json!("do it")), "do it");
    assert_eq!(default_prompt(&json!({"a": 1})), "{\n  \"a\": 1\n}");
}

#[test]
fn literal_includes_are_found_with_their_places() {
    let text =
        "a {% include 'x.md' %}{%- from \"y.md\" import z %}{% include name %}{{ 'include' }}{%";
    let found = includes(text);
    assert_eq!(found, [(2, "x.md".to_owned()), (22, "y.md".to_owned())]);
    assert!(includes("{% include é %}{%é").is_empty());
}
