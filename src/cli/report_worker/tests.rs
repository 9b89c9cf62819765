use std::os::unix::fs::symlink;

use super::*;

/// A directory with every kind of name and content that has surprised a report.
fn odd_tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &[u8], data: &[u8]| {
        let path = dir.path().join(OsStr::from_bytes(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, data).unwrap();
    };
    write(b"src/main.rs", b"// TODO: one\nfn main() {}\n");
    write(b"two words.py", b"x = 1  # FIXME(me) quoted \"text\"\r\nlast");
    write(b"new\nline.txt", b"\n\n");
    write(b"-dash.lua", b"--TODO\n-- TODOS are not one\n");
    write(b"100%.md", b"");
    write(b"b\xe9\xff.c", b"/* TODO caf\xe9 */");
    write(b"quote's\".js", "// TODO é\n".repeat(250).as_bytes());
    write(b"data.bin", b"\x00\x01\n");
    write(b".moonswarm/x.rs", b"// TODO: not ours\n");
    symlink("nowhere", dir.path().join("broken")).unwrap();
    symlink("src", dir.path().join("linked")).unwrap();
    dir
}

/// The answer of the Python worker to the same input.
fn python(module: &str, function: &str, input: &Value) -> Value {
    let script = format!(
        "import sys, json; sys.path.insert(0, sys.argv[1]); import {module}; \
         print(json.dumps({module}.{function}(json.loads(sys.argv[2]))))"
    );
    let blueprints = concat!(env!("CARGO_MANIFEST_DIR"), "/blueprints");
    let ran = Command::new("python3")
        .args(["-B", "-c", &script, blueprints, &input.to_string()])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

#[test]
fn both_workers_see_the_same_in_an_odd_tree() {
    let dir = odd_tree();
    let root = dir.path().to_str().unwrap();
    let list = json!({ "mode": "list", "root": root });
    let listing = perform(&list).unwrap();
    assert_eq!(listing, python("survey", "survey", &list));
    assert_eq!((&listing["links"], &listing["git"]), (&json!(2), &json!(false)));
    assert_eq!(listing["files"].as_array().unwrap().len(), 8);

    let count = json!({ "mode": "count", "root": root, "files": listing["files"] });
    let counted = perform(&count).unwrap();
    assert_eq!(counted, python("worker", "count", &count));
    assert_eq!((&counted["todos_found"], &counted["skipped"]), (&json!(254), &json!(0)));
    assert_eq!(counted["todos"].as_array().unwrap().len(), TODOS);
}

#[test]
fn both_workers_see_the_same_history() {
    let dir = odd_tree();
    let root = dir.path();
    let run = |arguments: &[&str]| {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
        let ran = Command::new("git").args(identity).args(arguments).current_dir(root).output();
        assert!(ran.unwrap().status.success(), "{arguments:?}");
    };
    run(&["init", "-q"]);
    run(&["add", "."]);
    run(&["commit", "-q", "-m", "first"]);
    fs::write(root.join("two words.py"), "x\n").unwrap();
    run(&["commit", "-q", "-a", "-m", "second"]);
    for mode in ["list", "churn"] {
        let input = json!({ "mode": mode, "root": root.to_str().unwrap() });
        let got = perform(&input).unwrap();
        assert_eq!(got, python("survey", "survey", &input));
        assert_eq!(got["git"], true);
    }
    let input = json!({ "mode": "churn", "root": root.to_str().unwrap() });
    let churned = perform(&input).unwrap();
    assert_eq!(churned["files"][0], json!(["quote's\".js", 1, 250, 0]));
}

#[test]
fn an_empty_directory_is_no_failure_and_a_missing_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    let listing = perform(&json!({ "mode": "list", "root": root })).unwrap();
    assert_eq!(listing, json!({ "files": [], "links": 0, "git": false }));
    let churned = perform(&json!({ "mode": "churn", "root": root })).unwrap();
    assert_eq!(churned, json!({ "git": false, "files": [] }));
    let missing = format!("{root}/missing");
    let error = perform(&json!({ "mode": "list", "root": missing })).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
}
