//! The seed's trait over real children.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use moonswarm::{
    clock::Clock,
    environment::{Config, Environments, Helper, Process},
    protocol::{
        Content, CredentialInjection, CredentialRef, EnvError, Environment as _, EnvironmentSpec,
        IsolationBoundary, OperatorInput, ResourceLimits, SecretAccessEvent, SecretAccessOutcome,
        SecretSource, TriggerType,
    },
};
use serde_json::json;

use super::{attempts, enforced};

fn environments(data: &Path) -> Arc<Environments> {
    let helper = Helper::at(env!("CARGO_BIN_EXE_moonswarm"));
    let environments = Environments::new(Config::default(), data, Clock::system());
    Arc::new(environments.with_helper(helper))
}

fn input(text: &str) -> OperatorInput {
    OperatorInput::new(Content::text(text), TriggerType::Task)
}

fn spec() -> EnvironmentSpec {
    match enforced("paths") {
        true => EnvironmentSpec::new().with_isolation(vec![IsolationBoundary::Process]),
        false => EnvironmentSpec::new(),
    }
}

fn command(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).to_vec()
}

#[tokio::test]
async fn a_command_is_an_operator_whose_secrets_do_not_come_back() {
    let data = tempfile::tempdir().unwrap();
    let heard = Arc::new(Mutex::new(Vec::<SecretAccessEvent>::new()));
    let to = Arc::clone(&heard);
    let script = "cat; echo; echo $TOKEN; pwd";
    let process = Process::new(environments(data.path()), command(script))
        .with_listener(Arc::new(move |event| to.lock().unwrap().push(event)));
    let source = SecretSource::Custom {
        provider: "command".into(),
        config: json!({ "argv": ["echo", "canary-4711"] }),
    };
    let goes = CredentialInjection::EnvVar { var_name: "TOKEN".into() };
    let spec = spec().with_credentials(vec![CredentialRef::new("it", source, goes)]);
    let output = process.run(input("hello"), &spec).await.unwrap();
    let text = output.message.as_text().unwrap().to_owned();
    assert!(text.starts_with("hello\n[secret it]\n"), "{text}");
    let work = text.lines().last().unwrap();
    assert!(Path::new(work).starts_with(data.path()) && !Path::new(work).exists(), "{work}");
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0].outcome, SecretAccessOutcome::Resolved);
    assert!(!format!("{heard:?}").contains("4711"));
}

#[tokio::test]
async fn half_a_secret_where_the_complaints_end_is_not_shown() {
    let data = tempfile::tempdir().unwrap();
    // The limit is 64 KiB.
    let script = "head -c 65531 /dev/zero | tr '\\0' x >&2; echo $TOKEN >&2; exit 3";
    let process = Process::new(environments(data.path()), command(script));
    let source = SecretSource::Custom {
        provider: "command".into(),
        config: json!({ "argv": ["echo", "canary-4711"] }),
    };
    let goes = CredentialInjection::EnvVar { var_name: "TOKEN".into() };
    let spec = spec().with_credentials(vec![CredentialRef::new("it", source, goes)]);
    let failed = process.run(input(""), &spec).await.unwrap_err().to_string();
    assert!(failed.contains("exit status: 3: xxx") && !failed.contains("cana"), "{failed}");
}

#[tokio::test]
async fn what_holds_the_output_of_a_command_keeps_nobody_waiting() {
    let data = tempfile::tempdir().unwrap();
    let process = Process::new(environments(data.path()), command("sleep 1000 & echo hi"));
    let output = process.run(input(""), &spec()).await.unwrap();
    assert_eq!(output.message.as_text(), Some("hi\n"));
}

#[tokio::test]
async fn of_many_complaints_the_last_is_shown_and_none_ends_the_command() {
    let data = tempfile::tempdir().unwrap();
    let many = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2";
    let failing = format!("{many}; exit 3");
    for (script, shown) in [(&*failing, "exit status: 3: last"), (many, "")] {
        let process = Process::new(environments(data.path()), command(script));
        match process.run(input(""), &spec()).await {
            Ok(output) => assert_eq!((output.message.as_text(), shown), (Some(""), "")),
            Err(error) => {
                let error = error.to_string();
                assert!(!shown.is_empty() && error.ends_with(shown), "{error:.200}");
            }
        }
    }
    let process = Process::new(environments(data.path()), command("yes"));
    let error = process.run(input(""), &spec()).await.unwrap_err();
    assert!(matches!(error, EnvError::ResourceExceeded(_)), "{error}");
}

#[tokio::test]
async fn every_way_to_fail_has_its_error_and_leaves_nothing() {
    let data = tempfile::tempdir().unwrap();
    let run = async |script: &str, spec: &EnvironmentSpec| {
        let process = Process::new(environments(data.path()), command(script));
        let error = process.run(input(""), spec).await.unwrap_err();
        assert_eq!(attempts(data.path()), [""; 0].map(Path::new));
        error
    };
    let failed = run("echo why >&2; exit 3", &spec()).await;
    assert!(matches!(&failed, EnvError::OperatorError(_)), "{failed}");
    assert!(failed.to_string().contains("exit status: 3: why"), "{failed}");
    let wall: ResourceLimits = serde_json::from_value(json!({ "wall": 100 })).unwrap();
    let slow = run("sleep 100000", &spec().with_resources(wall)).await;
    assert!(matches!(slow, EnvError::ResourceExceeded(_)), "{slow}");
    let nowhere = EnvironmentSpec::new().with_isolation(vec![IsolationBoundary::Gvisor]);
    assert!(matches!(run("true", &nowhere).await, EnvError::IsolationViolation(_)));
    let source = SecretSource::OsKeystore { service: "x".into() };
    let goes = CredentialInjection::EnvVar { var_name: "A".into() };
    let secret = spec().with_credentials(vec![CredentialRef::new("it", source, goes)]);
    assert!(matches!(run("true", &secret).await, EnvError::CredentialFailed(_)));
}
