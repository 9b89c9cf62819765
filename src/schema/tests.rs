use serde_json::json;

use super::*;

fn schema(document: Value, closed: bool) -> Schema {
    Schema::compile_value(document, closed).unwrap()
}

fn paths(outcome: Result<Value, Vec<Violation>>) -> Vec<String> {
    outcome.unwrap_err().into_iter().map(|violation| violation.path).collect()
}

#[test]
fn a_violation_names_its_path() {
    let schema = schema(
        json!({"type": "object", "properties": {"steps": {"type": "array", "items":
            {"type": "object", "properties": {"name": {"type": "string"}, "a b": {"type": "integer"}}}}}}),
        false,
    );
    let value = json!({"steps": [{}, {}, {"name": 1, "a b": "x"}]});
    assert_eq!(paths(schema.accept(value)), ["$.steps[2].name", "$.steps[2][\"a b\"]"]);
    assert_eq!(paths(schema.accept(json!(1))), ["$"]);
}

#[test]
fn violations_and_their_messages_are_bounded() {
    let schema = schema(json!({"type": "array", "items": {"type": "integer"}}), false);
    let violations = schema.validate(&json!(vec!["x".repeat(10_000); 100])).unwrap_err();
    assert_eq!(violations.len(), MAX_VIOLATIONS);
    assert!(violations.iter().all(|violation| violation.message.chars().count() <= 301));
}

#[test]
fn closed_schemas_refuse_undeclared_keys_at_every_depth_and_open_ones_take_them() {
    let document = json!({"type": "object", "properties": {"list": {"type": "array", "items":
        {"type": "object", "properties": {"a": {}}}}, "free": {"type": "object"},
        "said": {"type": "object", "properties": {}, "additionalProperties": true}}});
    let value = json!({"list": [{"a": 1, "b": 2}], "free": {"x": 1}, "said": {"y": 1}, "z": 0});
    let closed = schema(document.clone(), true);
    assert_eq!(paths(closed.accept(value.clone())).len(), 2);
    assert_eq!(schema(document, false).accept(value.clone()), Ok(value));
}

#[test]
fn closing_leaves_compositions_satisfiable() {
    let document = json!({"type": "object", "properties": {"a": {}},
        "allOf": [{"properties": {"b": {}}}, {"$ref": "#/$defs/c"}], "$defs": {"c": {"properties": {"c": {}}}}});
    let closed = schema(document, true);
    assert!(closed.accept(json!({"a": 1, "b": 2, "c": 3})).is_ok());
    assert!(closed.accept(json!({"a": 1, "d": 2})).is_err());
    let either =
        json!({"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "string"}]});
    assert!(schema(either.clone(), true).accept(json!({"b": 1})).is_err());
    assert!(schema(either, true).accept(json!("x")).is_ok());
}

#[test]
fn defaults_are_filled_in_before_validation_also_in_nested_values() {
    let schema = schema(
        json!({"type": "object", "required": ["n", "o"], "properties": {
            "n": {"type": "integer", "default": 3},
            "o": {"type": "object", "default": {}, "properties": {"deep": {"default": "x"}}},
            "list": {"type": "array", "items": {"$ref": "#/$defs/item"}}},
            "$defs": {"item": {"type": "object", "properties": {"k": {"default": 1}}}}}),
        true,
    );
    let accepted = schema.accept(json!({"list": [{}, {"k": 2}]})).unwrap();
    assert_eq!(accepted, json!({"n": 3, "o": {"deep": "x"}, "list": [{"k": 1}, {"k": 2}]}));
    assert_eq!(schema.accept(json!({"n": 5})).unwrap()["n"], 5);
}

#[test]
fn a_bare_table_becomes_a_list_where_the_schema_says_list() {
    let schema = schema(
        json!({"type": "object", "properties": {"l": {"type": "array"}, "o": {"type": "object"}, "any": {},
            "nullable": {"type": ["array", "null"]}}}),
        true,
    );
    let accepted = schema.accept(json!({"l": {}, "o": {}, "any": {}, "nullable": {}})).unwrap();
    assert_eq!(accepted, json!({"l": [], "o": {}, "any": {}, "nullable": []}));
}

#[test]
fn defaults_that_go_in_circles_come_to_an_end() {
    let circular = schema(
        json!({"type": "object", "properties": {"self": {"$ref": "#", "default": {}}}}),
        false,
    );
    assert!(circular.accept(json!({})).is_ok());
    let doubling =
        json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "properties": {"a": {"default": 1}}});
    let mut value = json!({});
    assert!(shape::complete(&mut value, &doubling));
    assert_eq!(value, json!({"a": 1}));
}

#[test]
fn defaults_have_a_size() {
    let schema = schema(
        json!({"type": "array", "items": {"type": "object", "properties": {
            "k": {"default": ["x".repeat(1 << 10)]}}}}),
        false,
    );
    let of = |items: usize| schema.accept(json!(vec![json!({}); items]));
    assert_eq!(of(4_000).unwrap()[3_999]["k"][0].as_str().map(str::len), Some(1 << 10));
    let refused = of(100_000).unwrap_err();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].to_string(), "$: the defaults have more than 4194304 bytes");
    let own = json!(vec![json!({"k": 1}); 100_000]);
    assert!(schema.accept(own).is_ok());
}

#[test]
fn references_out_of_the_schema_are_never_fetched() {
    for target in ["https://example.com/s.json", "file:///etc/passwd", "other.json"] {
        assert!(Schema::compile_value(json!({"$ref": target}), false).is_err(), "{target}");
    }
}

#[test]
fn a_document_that_is_no_schema_is_refused_with_its_path() {
    let document = json!({"type": "object", "properties": {"a": {"type": "strin"}}});
    assert_eq!(Schema::compile_value(document, false).unwrap_err().path, "$.properties.a.type");
    assert!(Schema::compile_value(json!({"pattern": "("}), false).is_err());
    assert!(Schema::compile(&Json::parse("3").unwrap(), false).is_err());
}

#[test]
fn without_a_schema_everything_is_accepted() {
    for any in [Schema::any(), schema(json!({}), true), schema(json!(true), true)] {
        assert_eq!(any.accept(json!({"x": {}})), Ok(json!({"x": {}})));
    }
    assert!(schema(json!(false), true).accept(json!(1)).is_err());
}

#[test]
fn integral_doubles_are_integers_and_formats_are_checked() {
    assert!(schema(json!({"type": "integer"}), false).accept(json!(3.0)).is_ok());
    assert!(schema(json!({"format": "date"}), false).accept(json!("2026-13-01")).is_err());
}
