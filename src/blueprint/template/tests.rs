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
    let names = templates.undeclared("{% macro m(x) %}{{ input.a[:n] ~ x[1:] }}{% endmacro %}");
    assert_eq!(names.unwrap().into_iter().collect::<Vec<_>>(), ["input", "n"]);
    let cut = "{% macro m(x) %}{{ step[:2] ~ x[1:] }}{% endmacro %}{{ m('abc') }}";
    assert_eq!(render(cut, json!({"step": "xyz"})).unwrap(), "xybc");
    let error = templates.undeclared("x\n{{ a").unwrap_err();
    assert_eq!(error.line, Some(2));
}

#[test]
fn a_name_that_default_or_defined_looks_at_need_not_be_defined() {
    for (template, names) in [
        ("{{ nope | default('') }} {{ (nope | d)[:3] }} {{ (gone | default(x)).a[0] }}", "x"),
        ("{% macro m(x) %}{{ (nope | default(x))[1:] }}{% endmacro %}{{ m(range(a | d)) }}", ""),
        ("{% if a.b is defined %}{{ a.b.c }}{% endif %}{{ c if c is not undefined }}", "a"),
        ("{{ a.b.c | default('') }} {{ b | upper | default('') }}", "a.b b"),
    ] {
        let required = Templates::bare().required(template).unwrap();
        assert_eq!(required.into_keys().collect::<Vec<_>>().join(" "), names, "{template}");
    }
    assert_eq!(render("{{ (nope | default('abcd'))[:3] }}", json!({})).unwrap(), "abc");
}

#[test]
fn a_plain_use_needs_its_name_also_beside_one_with_a_default() {
    for (template, expected) in [
        ("{{ a | default('') }}{{ a }}", "a 24"),
        ("{{ a is defined }}{{ (a) ~ 'x' }}", "a 22"),
        ("{{ a.b | default('') }}{{ a.b }}", "a.b 26"),
        ("{{ 'a' ~ a }}{# {{ a }} #}", "a 9"),
        ("{{ a | default('') }}{% if a %}{% endif %}", "a 27"),
        ("{{ a | default('') }}{% set b %}{{ a }}{% endset %}", "a 35"),
    ] {
        let required = Templates::bare().required(template).unwrap();
        let found: Vec<_> = required.iter().map(|(name, it)| format!("{name} {}", it.at)).collect();
        assert_eq!(found, [expected], "{template}");
        assert!(render(template, json!({})).is_err(), "{template}");
    }
    // What a condition keeps away, or the template defines, may be undefined.
    for template in [
        "{% if a | default('') %}{{ a }}{% endif %}",
        "{% if a | default('') and a.b %}{% endif %}",
        "{% for x in a | default([]) %}{{ a }}{% endfor %}",
        "{{ a if a | default('') else 'x' }}",
        "{% if a is not defined %}{% set a = 'x' %}{% endif %}{{ a | default('') }}",
        "{% set a = a | default('x') %}{{ a }}",
        "{% set b = a %}{{ a | default('') }}",
        "{% macro m() %}{{ a }}{% endmacro %}{{ a | default('') }}",
    ] {
        let required = Templates::bare().required(template).unwrap();
        assert!(required.is_empty(), "{template}: {required:?}");
        assert!(render(template, json!({})).is_ok(), "{template}");
    }
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
    let found: Vec<_> = includes(text).into_iter().map(|it| (it.offset, it.name)).collect();
    assert_eq!(found, [(2, "x.md".to_owned()), (22, "y.md".to_owned())]);
    assert!(includes("{% include é %}{%é").is_empty());
}

#[test]
fn an_include_that_a_template_renders_without_is_told_from_one_that_must_be_there() {
    for (text, may_miss) in [
        ("{% include 'x' %}", false),
        ("{%- include 'x' -%}", false),
        ("{% include 'x' with context %}", false),
        ("{% from 'x' import y as ignore %}", false),
        ("{# {% include 'x' %} #}", true),
        ("{% raw %}{% include 'x' %}{% endraw %}", true),
        ("{%- raw -%} {% include 'x' %} {%- endraw %}", true),
        ("{# a #}{% raw %}{% endraw %}{% include 'x' %}", false),
        ("{# not closed {% include 'x' %}", false),
        ("{% include 'x' ignore missing %}", true),
        ("{% include 'x/' ~ name ~ '.md' %}", true),
    ] {
        let found: Vec<_> = includes(text).into_iter().map(|it| it.may_miss).collect();
        assert_eq!(found, [may_miss], "{text}");
    }
}

/// Templates that would make far more than they are long, each by another way.
const BOMBS: &[&str] = &[
    "{{ '%10000000000d' | format(1) }}",
    "{{ '%.9999999999f' | format(1.5) }}",
    "{{ '%*d' | format(9999999999, 1) }}",
    "{% set big = 'x' * 1000000 %}{{ (('%(a)s' * 9999) | format(a=big)) | length }}",
    "{{ 'x' | replace('', 'y' * 1000000) | replace('y', 'z' * 1000) }}",
    "{{ 'a\nb' | indent(9999999999) }}",
    "{{ (['a'] * 99999) | join('y' * 1000000) | length }}",
    "{{ [1] | batch(9999999999, 'x') | length }}",
    "{{ [1] | slice(9999999999, 'x') | length }}",
    "{{ [[1]] | tojson(indent=9999999999) | length }}",
    "{{ [[[]]] * 99999999 }}",
    "{{ ('x' * 90000000) | length }}",
    "{{ 99999999 * 'x' }}",
    "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | length }}",
    "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l == ns.l }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l in 'x' }}",
    "{% set ns = namespace(l=(1, 2)) %}{% for i in range(64) %}{% set ns.l = ns.l, ns.l %}{% endfor %}{{ ns.l in 'x' }}",
    "{% set ns = namespace(l={}) %}{% for i in range(64) %}{% set ns.l = dict(a=ns.l, b=ns.l) %}{% endfor %}{{ ns.l in 'x' }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | length }}",
    "{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.x = [ns, ns] %}{{ ns }}{% for i in range(64) %}{% set ns.x = [ns, ns] %}{% endfor %}{{ ns }}",
    "{% set a %}{% for i in range(99999) %}0123456789012345678901234567890123456789{% for j in range(99999) %}0123456789012345678901234567890123456789{% endfor %}{% endfor %}{% endset %}{{ a | length }}",
    "{% set a %}{% for i in range(99999) %}{% raw %}01234567890123456789012345678901234567890123456789012345678901234567890123456789{% endraw %}{% for j in range(20) %}{{ i }}{% endfor %}{% endfor %}{% endset %}{{ a | length }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{{ m(n - 1) }}{{ m(n - 1) }}{% else %}0123456789{% endif %}{% endmacro %}{% set x = m(30) %}{{ x | length }}",
    "{{ range(99999) | map('replace', '', 'y' * 999999) | list | length }}",
    "{% set y = 'y' * 4000000 %}{% for i in range(9999) %}{% set z = y[1:] %}{% endfor %}{{ y | length }}",
    "{% filter replace('y', 'z' * 999999) %}{{ 'y' * 99999 }}{% endfilter %}",
    "{% set x | replace('y', 'z' * 999999) %}{{ 'y' * 99999 }}{% endset %}{{ x | length }}",
];

#[test]
fn nothing_that_a_template_makes_is_larger_than_it_may_be() {
    for bomb in BOMBS {
        let since = crate::clock::Clock::system().now_ms();
        let error = render(bomb, json!({})).expect_err(bomb);
        let known =
            ["larger than 4 MiB", "more than 64 MiB", "longer than 1 MiB", "nested too deep"];
        let fuel = ["fuel", "indented by", "recursion"].iter().any(|it| error.message.contains(it));
        assert!(fuel || known.iter().any(|it| error.message.contains(it)), "{bomb}: {error}");
        let took = crate::clock::Clock::system().now_ms().saturating_sub(since);
        assert!(took < 10_000, "{bomb} took {took} ms");
    }
}

/// Templates that go through a value again and again, each in another way.
const ROUNDS: &[&str] = &[
    "{% for i in range(99999) %}{% if -1 in input.list %}{% endif %}{% endfor %}",
    "{% for i in range(99999) %}{% if input.list | last == 1 %}{% endif %}{% endfor %}",
    "{% for i in range(99999) %}{% if input.list == input.list %}{% endif %}{% endfor %}",
    "{{ range(99999) | reject('in', input.text) | list | length }}",
    "{% for i in range(99999) %}{% set x = input.text[:1] %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = namespace(input.map) %}{% endfor %}",
    "{% for i in range(99999) %}{% if input.text is startingwith('x') %}{% endif %}{% endfor %}",
    "{% for i in range(99999) %}{% if input.text | length %}{% endif %}{% endfor %}",
];

#[test]
fn what_a_template_goes_through_is_bounded() {
    // A text counts by its length: few and long ones take little time.
    let list = vec!["x".repeat(50_000); 40];
    let map: Map<String, Value> =
        (0..).zip(&list).map(|(n, text)| (format!("k{n}"), text.as_str().into())).collect();
    let input = json!({ "list": list, "map": map, "text": "x".repeat(500_000) });
    for template in ROUNDS {
        let error = render(template, input.clone()).expect_err(template);
        assert!(error.message.contains("goes through more than"), "{template}: {error}");
    }
    let fewer =
        "{% for i in range(300) %}{{ i in input.list }}{{ input.list | length }}{% endfor %}";
    assert!(render(fewer, input).is_ok());
}

#[test]
fn bounded_templates_say_what_they_said_before() {
    let slots = slots(json!({
        "a": "x", "n": 3, "list": [1, "two", {"k": [3.5, null, true]}], "text": "l1\nl2",
    }));
    let unbounded = {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment
    };
    let same = |template: &str| {
        let plain = unbounded.render_str(template, object(&slots)).expect(template);
        assert_eq!(render_system(template, &slots).expect(template), plain, "{template}");
    };
    let long = "long text between two tags, which is counted as it is written";
    for template in [
        "{{ a ~ n ~ 'y' }} {{ (a ~ n) ~ (n + 1) * 2 }} {{ 2 * n + 1 - 4 // 3 }} {{ 'ab' * n }} {{ n * 'ab' }}",
        "{{ 1.5 * n }} {{ -n * 2 ** 3 }} {{ [1] + [2] }} {{ [1, 2] * 2 }} {{ (1, 2) + (3,) }} {{ not (a ~ a == 'xx') }}",
        "{{ a in 'xyz' }} {{ n not in [1, 2] }} {{ 1 < n <= 3 }} {{ [n, 1] in [[3, 1]] }} {{ 'k' in list[2] }}",
        "{{ list[0:2] }} {{ text[::-1] }} {{ list[2].k[0] }} {{ {'a': n, a: [n]} }} {{ (n, a) }} {{ (n) }} {{ () }}",
        "{{ 'a' if n > 2 else 'b' ~ n }} {{ a | upper | replace('X', 'yy' ~ n) }} {{ nope | default(a ~ 1) }}",
        "{{ list | tojson }} {{ list | tojson(indent=2) }} {{ text | indent(2) }} {{ text | indent(width=3, first=true) }}",
        "{{ [1, 2, 3] | join(', ' ~ a) }} {{ [{'k': 1}] | join('-', attribute='k') }} {{ '%s is %5.2f %03d' | format(a, 1.5, n) }}",
        "{{ range(7) | batch(3, '-') | list }} {{ range(7) | slice(3) | list }} {{ range(4) | map('string') | join(d='+') }}",
        "{% for k, v in {'a': 1}|items %}{{ k ~ v }}{% endfor %}{% for x in (1, 2) %}{{ x }}{% endfor %}",
        "{% set ns = namespace(t='') %}{% for x in list %}{% set ns.t = ns.t ~ x %}{% endfor %}{{ ns.t }}",
        "{% set (p, q) = (1, n) %}{{ p + q }}{% set p, q = 4, 5 %}{{ p * q }}{% with z = a ~ a %}{{ z }}{% endwith %}",
        "{% macro m(x, y=a ~ 1) %}<{{ x + y }}{{ caller() if caller is defined else '-' }}>{% endmacro %}{{ m('q') }}{% call m(a) %}in {{ n }}{% endcall %}",
        "{% filter upper | replace('L', 'm' ~ a) %}{{ text }}{% endfilter %}{% set s | trim %}  {{ a }} {% endset %}[{{ s }}]",
        "{% if a ~ n == 'x3' and n in [3] %}yes{% elif n * 2 %}no{% else %}{{ n }}{% endif %}{% do namespace() %}",
        &format!(
            "  {long}  {{%- if n -%}}   {long}   {{%- endif %}}  \n {{%- raw %}} {{{{ {long} }}}} {{% endraw -%}}  {long} {{# {long} #}} {long}\n"
        ),
        &format!(
            "{long}\n{{% raw -%}}   {{{{ {long} {{%- endraw %}}\n{{%- for i in range(2) %}} {long}\n   {{%- endfor -%}}\n\n"
        ),
        "{{ list[2].k[0:2][0] }} {{ (list)[0:2][1:] }} {{ ((a ~ a)[1:] ~ (list[2]).k[:1] | length) }} {{ (a ~ '(')[0:1] }}",
        "{{ list[2].k[0] in [3.5] }} {{ (list[2]).k[1] not in list[2].k[:1] }} {{ (a|upper)[0:] ~ text[0:1].x|default('(d)') }}",
        "{{ dict(a=1, b=n) }} {{ list | length + 1 }} {{ [a, a] | unique | list }} {{ 'ab' | list }} {{ (a ~ a) | length }}",
        "{% for x in(1, 2) %}{{ x }}{% endfor %}{% if not[1] %}a{% elif'x'in a %}{{ a in('x', 'y') }}{% endif %}",
        "{{ 1 in [1] in [[1], true] }} {{ 1 < 2 == 2 }} {{ nope is undefined }} {{ a is eq('x') }} {{ [1, 2] | select('in', [2]) | list }}",
        "{{ a is not none | string }} {{ (n is not none) == (a is not lower) }} {{ (a is not none | string)[1:] }} {{ not (a is none) | string }}",
        "{{ list is iterable and text is not lower }} {{ (a if n else nope) | length }} {{ (n == 3) | string }} {{ dict(**{'b': 1}) }}",
        "{{ [3, 1] | sort | first ~ [1] | last }} {{ [1, 2] | sum * 2 }} {{ list | select('string') | list }} {{ a is string and n is divisibleby 3 }}",
    ] {
        same(template);
    }
}

#[test]
fn the_line_of_a_mistake_is_the_authors() {
    let error =
        render("{{ 'a' ~ 'b' }}\n{{ agent ~ agent }} {{ nope ~ 1 }}", json!({})).unwrap_err();
    assert_eq!((error.line, error.offset), (Some(2), None), "{error}");
    let error = render("{{ agent ~ }}", json!({})).unwrap_err();
    assert_eq!(error.line, Some(1));
    assert!(render("{{ debug() }}", json!({})).is_err());
}
