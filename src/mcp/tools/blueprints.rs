//! Blueprints: find, read, check, test, save.

use std::collections::BTreeMap;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    mcp::{
        answer::{Done, Trouble, cut},
        transport::{Path, Transport},
    },
    protocol::text::counted,
};

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct List {}

pub(super) async fn list(transport: &dyn Transport, _: List) -> Result<Done, Trouble> {
    let value = transport.get(Path::new("/v1/blueprints")).await?;
    let names: Vec<&str> = items(&value).filter_map(|it| it["name"].as_str()).collect();
    let text = match names.len() {
        0 => "no blueprints; save_blueprint stores one".to_owned(),
        count => format!("{}: {}", counted(count, "blueprint"), names.join(", ")),
    };
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Get {
    /// The name, or `name@hash-prefix` for a version.
    name: String,
    /// True to get its files as well.
    source: Option<bool>,
}

pub(super) async fn get(transport: &dyn Transport, args: Get) -> Result<Done, Trouble> {
    let blueprint = transport.get(Path::new("/v1/blueprints").at(&args.name)).await?;
    let mut value = json!({ "blueprint": blueprint });
    if args.source == Some(true) {
        let text = |key: &str| blueprint[key].as_str().unwrap_or_default();
        let path = Path::new("/v1/blueprints").at(text("name")).at(text("hash")).at("source");
        let source = transport.get(path).await?;
        value["files"] = source["files"].clone();
        value["entry"] = source["entry"].clone();
    }
    let text = blueprint["description"].as_str().unwrap_or("no description");
    let text = format!("blueprint {}: {text}", args.name);
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    /// The Lua source of the entry file. Give this, or `files`.
    source: Option<String>,
    /// The files of a bundle: text by relative path.
    files: Option<BTreeMap<String, String>>,
    /// The file that returns the blueprint, if it is not `main.lua` or the only one.
    entry: Option<String>,
}

pub(super) async fn check(transport: &dyn Transport, args: Check) -> Result<Done, Trouble> {
    let body = bundle(args.source, args.files, args.entry);
    let value = transport.post(Path::new("/v1/check"), &body).await?;
    let count = counted(value["findings"].as_array().map_or(0, Vec::len), "finding");
    let text = match value["ok"] == true {
        true => format!("it can run; {count}"),
        false => format!("it cannot run: {count}; correct those of severity error"),
    };
    Ok(Done::new(value, text))
}

/// The failures that the text of a result names.
const NAMED: usize = 5;
/// The bytes of a failure in that text.
const LINE: usize = 300;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    /// A stored blueprint: its name, or `name@hash-prefix`. Give this, or `source` or `files`.
    blueprint: Option<String>,
    /// The Lua source of the entry file.
    source: Option<String>,
    /// The files of a bundle: text by relative path.
    files: Option<BTreeMap<String, String>>,
    /// The file that returns the blueprint, if it is not `main.lua` or the only one.
    entry: Option<String>,
    /// The tests: text by path, such as `main_test.lua`. Files that end in `_test.lua` are run; others
    /// are there for them: modules, snapshots, blueprints that are called.
    tests: BTreeMap<String, String>,
    /// Runs only tests whose name contains this text.
    filter: Option<String>,
    /// True to run each test again with a crash of the host after every write to a journal.
    crash: Option<bool>,
    /// The seconds that one test may take, 10 at most and by default.
    timeout_seconds: Option<u32>,
}

pub(super) async fn test(transport: &dyn Transport, args: Test) -> Result<Done, Trouble> {
    let mut body = bundle(args.source, args.files, args.entry);
    body["tests"] = json!(args.tests);
    for (key, value) in [
        ("blueprint", args.blueprint.map(Value::from)),
        ("filter", args.filter.map(Value::from)),
        ("crash", args.crash.map(Value::from)),
        ("timeout", args.timeout_seconds.map(|it| Value::from(format!("{it}s")))),
    ] {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    let value = transport.post(Path::new("/v1/test"), &body).await?;
    let text = told(&value);
    Ok(Done::new(value, text))
}

/// Returns the sums of a result and its first failures.
fn told(value: &Value) -> String {
    let mut text = format!("{} passed, {} failed", value["passed"], value["failed"]);
    if value["skipped"] != 0 {
        text.push_str(&format!(", {} not run: name fewer with `filter`", value["skipped"]));
    }
    let files = || value["files"].as_array().into_iter().flatten();
    let broken = files().filter_map(|file| file["broken"].as_str().map(|why| (&file["file"], why)));
    let failed = files().flat_map(|file| file["tests"].as_array().into_iter().flatten());
    let failed =
        failed.filter_map(|it| it["failure"]["message"].as_str().map(|why| (&it["name"], why)));
    let all: Vec<_> = broken.chain(failed).collect();
    for (what, why) in all.iter().take(NAMED) {
        let first = why.lines().next().unwrap_or_default();
        text.push_str(&format!("\n{}: {}", what.as_str().unwrap_or_default(), cut(first, LINE)));
    }
    if all.len() > NAMED {
        text.push_str(&format!("\nand {} more", all.len() - NAMED));
    }
    text
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Save {
    /// The name; it must be the `name` in the blueprint.
    name: String,
    /// The Lua source of the entry file. Give this, or `files`.
    source: Option<String>,
    /// The files of a bundle: text by relative path.
    files: Option<BTreeMap<String, String>>,
    /// The file that returns the blueprint, if it is not `main.lua` or the only one.
    entry: Option<String>,
}

pub(super) async fn save(transport: &dyn Transport, args: Save) -> Result<Done, Trouble> {
    let body = bundle(args.source, args.files, args.entry);
    let value = transport.put(Path::new("/v1/blueprints").at(&args.name), &body).await?;
    let text = format!("saved {} as {}", args.name, value["hash"].as_str().unwrap_or_default());
    Ok(Done::new(value, text))
}

/// Returns the body of a blueprint, without what is absent.
pub(super) fn bundle(
    source: Option<String>,
    files: Option<BTreeMap<String, String>>,
    entry: Option<String>,
) -> Value {
    let mut body = json!({});
    for (key, value) in [
        ("source", source.map(Value::from)),
        ("files", files.map(|files| json!(files))),
        ("entry", entry.map(Value::from)),
    ] {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    body
}

/// Returns the items of a page.
pub(super) fn items(page: &Value) -> impl Iterator<Item = &Value> {
    page["items"].as_array().into_iter().flatten()
}
