//! The tab Artifacts of a run: its files, with a preview of texts and pictures.
//!
//! The first bytes of a file tell its format. A picture is one of four formats that browsers only draw; an
//! SVG can do more than that, and is shown as text. Everything else is downloaded.

use axum::{
    extract::{Path, State},
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{bytes::size, command, json, markdown, pager, text, time},
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{ArtifactView, RunView},
    protocol::{ArtifactId, Json},
};

/// The number of files of a page.
const LIMIT: usize = 100;
/// The largest picture that is shown, in bytes.
const PICTURE: usize = 8 << 20;
/// The longest text that is shown, in bytes.
const TEXT: usize = 100_000;

/// Returns the tab.
pub(super) async fn tab(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let tasks = desk.engine.tasks();
    let files = allowed(tasks.artifacts(&visitor.caller, view.id).await)?.unwrap_or_default();
    let name = fields.text("q").to_lowercase();
    let skip = fields.given("cursor").map_or(Ok(0), str::parse::<usize>);
    let skip =
        skip.map_err(|_| Problem::new(Code::BadQuery, "cursor is not one of this list's"))?;
    let step = fields.given("step").map(|it| it.trim().parse::<u32>()).transpose();
    let step = step.map_err(|_| Problem::new(Code::BadQuery, "step is the number of a step"))?;
    let is_filtered = step.is_some() || !name.is_empty();
    let fits = files.iter().filter(|file| {
        file.name.to_lowercase().contains(&name) && step.is_none_or(|step| file.step == step)
    });
    let fits: Vec<_> = fits.collect();
    let next = (fits.len() > skip.saturating_add(LIMIT)).then(|| (skip + LIMIT).to_string());
    let path = format!("/ui/runs/{}", view.id);
    let opened = match fields.given("open") {
        Some(open) => Some(tasks.artifact(&visitor.caller, id(open)?).await?),
        None => None,
    };
    let step = step.map(|it| it.to_string()).unwrap_or_default();
    let query = [("tab", "artifacts"), ("q", fields.text("q")), ("step", step.as_str())];
    Ok(html! {
        @if let Some((file, data)) = &opened { (preview(visitor, file, data)) }
        @if !files.is_empty() {
            form.card.filters method="get" action=(path) {
                input type="hidden" name="tab" value="artifacts";
                div { label for="q" { "Name" } input type="text" id="q" name="q" spellcheck="false" value=(fields.text("q")); }
                div { label for="step" { "Step" } input type="text" inputmode="numeric" id="step" name="step" value=(step); }
                button.main { "Filter" }
                @if is_filtered { a href={ (path) "?tab=artifacts" } { "Show all" } }
            }
        }
        div.card.flush tabindex="0" {
            @if files.is_empty() { div.empty { "No artifacts: " code { "ctx:artifact(\"name\", text)" } " keeps a file." } }
            @else if fits.is_empty() { div.empty { "No file matches." } }
            @else {
                table.stack {
                    thead { tr { th { "Name" } th { "Step" } th.num { "Size" } th { "When" } th { "File" } } }
                    tbody { @for file in fits.iter().skip(skip).take(LIMIT) {
                        tr data-key=(file.id.to_string()) {
                            td data-label="Name" {
                                @let open = file.id.to_string();
                                a href=(pager::url(&path, &[query[0], query[1], query[2], ("open", &open)])) { (text::line(&file.name, 200)) }
                            }
                            td data-label="Step" { a href={ "/ui/runs/" (view.id) "/steps/" (file.step) } { (file.step) } }
                            td.num data-label="Size" { (size(file.size)) }
                            td data-label="When" { (time::of(&file.created_at, visitor.now_ms)) }
                            td data-label="File" { a href={ "/ui/artifacts/" (file.id) } download { "Download" } }
                        }
                    } }
                }
            }
            (pager::links(&path, &query, skip == 0, next.as_deref()))
        }
        (command::same(&visitor.url, &format!("moonswarm artifacts ls {}", view.id), &command::Request {
            method: "GET",
            path: format!("/v1/runs/{}/artifacts", view.id),
            body: None,
        }))
    })
}

fn preview(visitor: &Visitor, file: &ArtifactView, data: &[u8]) -> Markup {
    let raw = visitor.raw();
    let words = std::str::from_utf8(data).ok().filter(|text| !text.contains('\0'));
    let has = |end: &str| file.name.to_lowercase().ends_with(end);
    let json = words.filter(|text| text.len() <= TEXT && text.trim_start().starts_with(['{', '[']));
    let json = json.filter(|_| !raw).and_then(|text| Json::parse(text).ok());
    let is_markdown = has(".md") || has(".markdown");
    html! {
        section.card #preview {
            h2.line { (text::line(&file.name, 200))
                span.dim.small { (size(file.size)) }
                a.small href={ "/ui/artifacts/" (file.id) } download { "Download" }
            }
            @if let Some(kind) = picture(data).filter(|_| data.len() <= PICTURE) {
                p.dim.small { (kind) }
                img.preview src={ "/ui/artifacts/" (file.id) "/picture" } alt={ "The picture " (text::short(&file.name, 100)) };
            } @else if let Some(json) = json {
                (json::tree(&json, true))
                (markdown::switch(visitor))
            } @else if let Some(words) = words {
                @if is_markdown { (markdown::block(text::cut(words, TEXT).0, true, raw)) (markdown::switch(visitor)) }
                @else { (text::block(text::cut(words, TEXT).0, true)) }
                @if words.len() > TEXT { p.dim.small { "… and " (words.len() - TEXT) " more bytes" } }
            } @else {
                p.dim { "It is neither a text nor a picture that is shown here. Download it." }
            }
        }
    }
}

/// Returns the type of a picture, by its first bytes.
fn picture(data: &[u8]) -> Option<&'static str> {
    match data {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Serves a file as the picture that it is.
pub(in crate::dashboard) async fn show_picture(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(artifact): Path<String>,
) -> Result<Response, Problem> {
    let artifact: ArtifactId = id(&artifact)?;
    let (_, data) = desk.engine.tasks().artifact(&visitor.caller, artifact).await?;
    let Some(kind) = picture(&data).filter(|_| data.len() <= PICTURE) else {
        return Err(Problem::new(Code::NotFound, "this file is no picture that is shown here"));
    };
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], data).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_known_by_its_bytes_and_an_svg_is_none() {
        assert_eq!(picture(b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(picture(b"GIF89a"), Some("image/gif"));
        assert_eq!(picture(b"RIFF\0\0\0\0WEBPVP8"), Some("image/webp"));
        for other in [&b"<svg/>"[..], b"GIF88a", b"", b"RIFF\0\0\0\0WAVE", b"<html>"] {
            assert_eq!(picture(other), None);
        }
    }
}
