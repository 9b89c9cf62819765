//! Secrets from a Vault server, over its HTTP API.

use reqwest::{StatusCode, redirect};
use serde_json::Value;
use zeroize::Zeroizing;

use super::{
    Secret,
    answer::{BodyError, BodyLimit, read_body},
    config::Vault,
    found::{Found, LONGEST, Missing, PATIENCE},
    http_client,
};

/// The size limit of a response, in bytes.
const ANSWER: usize = 1 << 20;

/// Reads `path` below `mount`. The part after a `#` is the field; it may be omitted if there is
/// only one field.
pub(super) async fn read(vault: &Vault, mount: &str, path: &str) -> Result<Found, Missing> {
    let (path, field) =
        path.split_once('#').map_or((path, None), |(path, field)| (path, Some(field)));
    let mut url = vault.address.clone();
    {
        let mut segments =
            url.path_segments_mut().map_err(|()| Missing::failed("the vault has no address"))?;
        segments.pop_if_empty().push("v1");
        let parts = mount.split('/').chain(path.split('/')).filter(|part| !part.is_empty());
        for part in parts {
            if matches!(part, "." | "..") {
                return Err(Missing::denied("its path leads elsewhere"));
            }
            segments.push(part);
        }
    }
    let token = vault
        .token
        .resolve()
        .map_err(|error| Missing::failed(format!("failed to {error}, the vault's token")))?;
    let failed = |error: reqwest::Error| {
        // Without the URL, because its path may be confidential.
        Missing::failed(format!("the vault cannot be asked: {}", error.without_url()))
    };
    // The token is sent only to the configured address.
    let client = http_client()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .map_err(failed)?;
    let mut request = client.get(url).header("x-vault-token", token.expose());
    if let Some(namespace) = &vault.namespace {
        request = request.header("x-vault-namespace", namespace);
    }
    let answer = request.send().await.map_err(failed)?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
            return Err(Missing::denied("the vault refuses the host's token"));
        }
        StatusCode::NOT_FOUND => return Err(Missing::failed("the vault has nothing there")),
        other => return Err(Missing::failed(format!("the vault answered {}", other.as_u16()))),
    }
    let mut body = Zeroizing::new(Vec::new());
    let limit = BodyLimit { bytes: ANSWER, silence: None };
    read_body(answer, limit, &mut body).await.map_err(|error| match error {
        BodyError::Failed(error) => failed(error),
        BodyError::TooLarge => Missing::failed("the vault's answer is too long"),
        BodyError::Silent => Missing::failed("the vault does not answer"),
    })?;
    let mut body: Value =
        serde_json::from_slice(&body).map_err(|_| Missing::failed("the vault answered no JSON"))?;
    let found = find(&body, field);
    wipe(&mut body);
    found
}

fn find(body: &Value, field: Option<&str>) -> Result<Found, Missing> {
    let data = &body["data"];
    // In version 2 of the key-value engine, the fields are one level deeper, beside their metadata.
    let fields = match (&data["data"], &data["metadata"]) {
        (Value::Object(fields), Value::Object(_)) => fields,
        _ => data.as_object().ok_or_else(|| Missing::failed("the vault's answer has no data"))?,
    };
    let value = match field {
        Some(field) => fields.get(field),
        None if fields.len() == 1 => fields.values().next(),
        None => fields.get("value"),
    };
    let text = value.and_then(Value::as_str).ok_or_else(|| {
        let which = field.unwrap_or("value");
        Missing::failed(format!("the vault has no text in the field {which:?}"))
    })?;
    if text.len() > LONGEST {
        return Err(Missing::failed(format!("it has more than {LONGEST} bytes")));
    }
    let secret = Secret::of_bytes(text.as_bytes()).ok_or_else(|| Missing::failed("no text"))?;
    let lease = body["lease_id"].as_str().filter(|id| !id.is_empty());
    let seconds = body["lease_duration"].as_u64().unwrap_or(0);
    Ok(Found { secret, lease: lease.map(|id| (id.to_owned(), seconds)) })
}

/// Wipes all texts of a tree.
fn wipe(tree: &mut Value) {
    match tree {
        Value::String(text) => drop(Zeroizing::new(std::mem::take(text))),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(fields) => fields.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
    };

    use super::*;
    use crate::protocol::SecretAccessOutcome;

    /// Starts a vault that answers once. Returns it and a receiver for its request.
    fn answers(status: &str, body: &str) -> (Vault, std::sync::mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let (asked, heard) = std::sync::mpsc::channel();
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while reader.read_line(&mut head).unwrap() > 2 {}
            asked.send(head).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        };
        std::thread::Builder::new().name("vault".into()).spawn(serve).unwrap();
        let token = super::super::Text::Plain("s.token".to_owned());
        (Vault { address, token, namespace: Some("team".into()) }, heard)
    }

    #[tokio::test]
    async fn a_field_of_the_second_version_is_read_with_its_lease() {
        let body = r#"{"lease_id":"kv/7","lease_duration":60,
            "data":{"data":{"pw":"canary-1\n","user":"ann"},"metadata":{"version":3}}}"#;
        let (vault, heard) = answers("200 OK", body);
        let found = read(&vault, "secret", "data/team a/ci#pw").await.unwrap();
        assert_eq!(found.secret.expose(), "canary-1");
        assert_eq!(found.lease, Some(("kv/7".to_owned(), 60)));
        let head = heard.recv().unwrap().to_lowercase();
        assert!(head.starts_with("get /v1/secret/data/team%20a/ci http/1.1"), "{head}");
        assert!(
            head.contains("x-vault-token: s.token") && head.contains("x-vault-namespace: team")
        );
    }

    #[tokio::test]
    async fn the_only_field_needs_no_name_and_two_do() {
        let (vault, _heard) = answers("200 OK", r#"{"data":{"key":"canary-2"}}"#);
        assert_eq!(read(&vault, "kv", "x").await.unwrap().secret.expose(), "canary-2");
        let (vault, _heard) = answers("200 OK", r#"{"data":{"a":"canary-3","b":"canary-4"}}"#);
        let missing = read(&vault, "kv", "x").await.unwrap_err();
        assert!(missing.reason.contains("no text in the field \"value\""), "{missing:?}");
    }

    #[tokio::test]
    async fn what_a_vault_refuses_says_nothing_of_its_answer() {
        for (status, outcome, part) in [
            ("403 Forbidden", SecretAccessOutcome::Denied, "refuses the host's token"),
            ("404 Not Found", SecretAccessOutcome::Failed, "nothing there"),
            ("503 Sealed", SecretAccessOutcome::Failed, "answered 503"),
            ("302 Found", SecretAccessOutcome::Failed, "answered 302"),
            ("200 OK", SecretAccessOutcome::Failed, "no JSON"),
        ] {
            let (vault, _heard) = answers(status, "canary-5");
            let missing = read(&vault, "kv", "x").await.unwrap_err();
            assert_eq!(missing.outcome, outcome);
            assert!(missing.reason.contains(part), "{missing:?}");
            assert!(!missing.reason.contains("canary"), "{missing:?}");
        }
        let (vault, _heard) = answers("200 OK", "{}");
        assert!(read(&vault, "kv", "../sys").await.unwrap_err().reason.contains("elsewhere"));
    }
}
