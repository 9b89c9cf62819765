//! The coding agents that are set up to use this host: their program, and their token.

use std::{env, fs, os::unix::fs::PermissionsExt as _, path::Path};

use super::{DoctorVerdict, Line, answering};
use crate::cli::{
    connect::Owner,
    context::Context,
    files,
    mcp_clients::{McpClient, Reach},
};

/// Returns a line for each configuration that has our server.
pub(super) async fn check(cx: &Context) -> Vec<Line> {
    let Ok(home) = files::home() else { return Vec::new() };
    let mut lines = Vec::new();
    for client in McpClient::ALL {
        for reach in [Reach::Project, Reach::User] {
            let file = client.file(reach, &home, Path::new("."));
            let text = fs::read_to_string(&file).unwrap_or_default();
            if let Some((program, token)) = client.entry_in(&text) {
                let scope = match reach {
                    Reach::Project => "project",
                    Reach::User => "user",
                };
                let again =
                    format!("moonswarm mcp install --client {} --scope {scope}", client.word());
                lines.push(match state(cx, &program, &token).await {
                    Ok(says) => {
                        Line::new(DoctorVerdict::Ok, WHAT, format!("{}: {says}", file.display()))
                    }
                    Err(why) => {
                        Line::new(DoctorVerdict::Fail, WHAT, format!("{}: {why}", file.display()))
                            .next(again)
                    }
                });
            }
        }
    }
    lines
}

const WHAT: &str = "coding agent";

/// Returns what the entry can do, or the reason why it cannot be used.
async fn state(cx: &Context, program: &Path, token: &Path) -> Result<String, String> {
    let is_there = |dir: &Path| dir.join(program).is_file();
    let in_path =
        || env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|dir| is_there(&dir));
    if !(program.is_absolute() && program.is_file()
        || program.components().count() == 1 && in_path())
    {
        return Err(format!("the program {} is not there", program.display()));
    }
    let name = token.display();
    let text = fs::read_to_string(token).map_err(|error| format!("the token {name}: {error}"))?;
    let mode = fs::metadata(token).map_err(|error| format!("the token {name}: {error}"))?;
    if mode.permissions().mode() & 0o077 != 0 {
        return Err(format!("others can read the token {name}"));
    }
    let data = &cx.config.data;
    let asked = match Owner::read(data) {
        Some(owner) => answering(&owner, data).await,
        None => None,
    };
    let Some(client) = asked else {
        return Ok(format!("its token is in {name}; no daemon runs here that could check it"));
    };
    match client.with_token(text.trim()).whoami().await {
        Ok(who) => Ok(format!(
            "its token is valid until {}",
            who["expires_at"].as_str().unwrap_or("it is revoked")
        )),
        Err(error) => Err(format!("the token {name}: {error:#}")),
    }
}
