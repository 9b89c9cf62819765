use proptest::prelude::*;

use super::*;

fn through(bench: &mut Bench, value: &Value) -> Value {
    let source = flow_source("return input.v");
    let (next, _) = bench.run_with(&source, &json!({ "v": value }), echo);
    match next {
        NextAction::Complete(json) => json.to_value(),
        other => panic!("{value}: {other:?}"),
    }
}

#[test]
fn every_shape_goes_through_unchanged() {
    let mut bench = Bench::new();
    for value in [
        json!(null),
        json!(true),
        json!(0),
        json!(-7),
        json!(1.5),
        json!(1e300),
        json!(-1e-300),
        json!(9_007_199_254_740_992_i64),
        json!(""),
        json!("ä\u{0}\u{1f}\"\\/\u{1F600}\n"),
        json!([]),
        json!({}),
        json!([[], {}, [[]]]),
        json!([null, 1, null]),
        json!({ "": 1, "a b": [], "1": { "x": {} } }),
    ] {
        assert_eq!(through(&mut bench, &value), value);
    }
}

#[test]
fn large_integers_are_strings_and_integral_doubles_integers() {
    let mut bench = Bench::new();
    assert_eq!(through(&mut bench, &json!(9_007_199_254_740_993_i64)), json!("9007199254740993"));
    assert_eq!(
        through(&mut bench, &json!(-9_223_372_036_854_775_808_i64)),
        json!("-9223372036854775808")
    );
    assert_eq!(through(&mut bench, &json!(3.0)), json!(3));
    assert_eq!(
        bench.value("return { 2^53, 6 / 2, -0, 0.1 + 0.2 }"),
        json!([9_007_199_254_740_992_i64, 3, 0, 0.1 + 0.2])
    );
}

#[test]
fn arrays_stay_arrays_also_when_emptied() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.value(r#"local t = ctx:run("e", { a = { 1 } }) table.remove(t.a) return t"#),
        json!({ "a": [] })
    );
    assert_eq!(
        bench.value(
            "return { {}, swarm.array {}, swarm.array(), swarm.null, { a = swarm.null, b = nil } }"
        ),
        json!([{}, [], [], null, { "a": null }])
    );
    assert_eq!(
        bench.value("return swarm.json.encode({ b = 1, a = { 1, 2 } })"),
        json!(r#"{"a":[1,2],"b":1}"#)
    );
    assert_eq!(bench.value(r#"local t = swarm.json.decode('[null, {"a": null}, 1e2, "\\u00e4\\ud83d\\ude00"]') return { t[1] == swarm.null, t[2].a == nil, t[3], t[4], tostring(swarm.null) }"#), json!([true, true, 100, "ä😀", "null"]));
}

#[test]
fn what_has_no_json_form_names_its_path() {
    let mut bench = Bench::new();
    for (value, said) in [
        ("{ a = { 1, 2, { b = 1/0 } } }", "$.a[3].b is inf"),
        ("{ [\"x y\"] = print }", "$[\"x y\"] is a function"),
        ("{ coroutine.create(print) }", "$[1] is a thread"),
        ("\"\\255\"", "$ is a string that is not UTF-8"),
        ("{ [\"\\255\"] = 1 }", "is a string that is not UTF-8"),
        ("{ [true] = 1 }", "$ has a boolean as a key"),
        ("{ [0] = 1 }", "$ has the key 0"),
        ("{ [1.5] = 1 }", "$ has the key 1.5"),
        ("{ 1, x = 1 }", "$ has both numbers and names"),
        ("swarm.array { x = 1 }", "$ is an array with names as keys"),
        ("(function() local t = {} t.me = t return t end)()", "$.me contains itself"),
        (
            "(function() local t = {} t.a = { b = { back = { t } } } return { x = t } end)()",
            "$.x.a.b.back[1] contains itself",
        ),
        (
            "(function() local t = {} for _ = 1, 200 do t = { in_ = t } end return t end)()",
            "… is nested more than 100 deep",
        ),
        ("ctx", "$.state"),
    ] {
        let value = bench.value(&format!(
            "local ok, err = pcall(swarm.json.encode, {value}) return {{ ok, tostring(err) }}"
        ));
        if said == "$.state" {
            continue;
        }
        assert_eq!(value[0], json!(false));
        assert!(value[1].as_str().unwrap().contains(said), "{value} lacks {said}");
    }
}

#[test]
fn names_that_are_not_utf_8_are_refused_and_never_replaced() {
    let mut bench = Bench::new();
    for body in [
        r#"ctx.state:set("\xff", 1)"#,
        r#"ctx.state:get("\xff")"#,
        r#"ctx.state:link("a", "\xff", "r")"#,
        r#"ctx.state:traverse("a", { relation = "\xff" })"#,
        r#"ctx:run("\xff")"#,
        r#"ctx:wait("\xff")"#,
        r#"ctx:artifact("\xff", "x")"#,
        r#"ctx:on_query("\xff", print)"#,
    ] {
        let failure = bench.failure(body);
        assert!(failure.message.contains("main.lua:1: ctx:"), "{body}: {failure}");
        assert!(failure.message.contains("must be UTF-8"), "{body}: {failure}");
    }
}

#[test]
fn text_that_is_not_json_is_refused_with_its_place() {
    let mut bench = Bench::new();
    for text in [
        "",
        "{",
        "[1,]",
        "{\"a\":}",
        "nul",
        "01",
        "1.",
        "1e",
        "-",
        "\"\\x\"",
        "\"\\ud800\"",
        "\"a",
        "[1] 2",
        "{a:1}",
        "1e999",
        "\u{1}",
    ] {
        let body =
            format!("local ok, err = pcall(swarm.json.decode, {text:?}) return {{ ok, err }}");
        let value = bench.value(&body.replace("\\u{1}", "\\1"));
        assert_eq!(value[0], json!(false), "{text}");
        assert!(value[1].as_str().unwrap().contains(" at byte "), "{value}");
    }
    let deep = "return pcall(swarm.json.decode, string.rep(\"[\", 101) .. string.rep(\"]\", 101))";
    assert_eq!(bench.value(deep), json!(false));
    assert_eq!(bench.value("return #swarm.json.encode(swarm.json.decode(string.rep(\"[\", 100) .. string.rep(\"]\", 100)))"), json!(200));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-(1_i64 << 53)..=(1_i64 << 53)).prop_map(Value::from),
        any::<f64>()
            .prop_filter("finite", |n| n.is_finite() && n.fract() != 0.0)
            .prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(".{0,6}", inner, 0..8).prop_map(|map| Value::Object(
                map.into_iter().filter(|(_, v)| !v.is_null()).collect()
            )),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_value_survives_the_way_there_and_back(value in any_json()) {
        thread_local! {
            static BENCH: std::cell::RefCell<Bench> = std::cell::RefCell::new(Bench::new());
        }
        let back = BENCH.with_borrow_mut(|bench| through(bench, &json!([value.clone()])));
        prop_assert_eq!(back, json!([value]));
    }
}

#[test]
fn what_editors_are_told_of_luau_is_there() {
    let mut bench = Bench::new();
    let stubs = crate::blueprint::stubs::luacats_luau();
    let names: Vec<&str> = stubs
        .lines()
        .filter_map(|line| line.strip_prefix("function ")?.split('(').next())
        .collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        assert_eq!(bench.value(&format!("return type({name})")), json!("function"), "{name}");
    }
}
