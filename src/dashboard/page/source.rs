//! The tab Source of a run: the blueprint's files, with what the run did at each line.

use maud::{Markup, html};

use super::{
    source_links::{self, LINES, first_of, url},
    source_locals::Pane,
};
use crate::{
    blueprint::Bundle,
    dashboard::{
        component::{pager, text, time},
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        visitor::Visitor,
    },
    door::{Code, Problem},
    engine::{EngineError, FailureView, LineSteps, Lines, RunView},
    protocol::{Json, RunId},
    token::Verb,
};

/// The maximum number of files that are listed.
const FILES: usize = 200;
/// The longest line that is shown, in bytes.
const WIDTH: usize = 1_000;
/// The maximum number of calls of a traceback.
const FRAMES: usize = 20;

/// A place in the source.
type Place = (String, u32);

/// Returns the tab.
pub(super) async fn tab(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let pane = Pane::of(desk, visitor, view.id, fields).await?;
    let bundle = desk.engine.blueprints();
    let bundle = match bundle.blueprint_source(&visitor.caller, &view.blueprint, &view.hash).await {
        // A version that only came with a run has no source for a token of one blueprint.
        Err(EngineError::NotFound { .. }) => None,
        found => allowed(found)?,
    };
    let Some(bundle) = bundle else {
        return Ok(html! {
            @if let Some(pane) = &pane { (pane.html) }
            div.empty { "This token does not reach the source of this run." }
        });
    };
    let lines = desk.engine.lines(&visitor.caller, view.id).await?;
    let fault = view.error.as_ref().filter(|_| view.ended_at.is_some());
    let fault = match fault {
        Some(error) => fault_of(desk, visitor, view.id, &bundle, error).await?,
        None => None,
    };
    // Without a choice, the page follows the run.
    let moment = pane.as_ref().and_then(|pane| pane.place.clone());
    let at = fault.as_ref().and_then(|fault| fault.frames.first().map(|frame| frame.place.clone()));
    let at = moment.clone().or(at);
    let at =
        at.or_else(|| lines.iter().find(|(_, it)| it.open > 0).map(|(place, _)| place.clone()));
    let asked = fields.given("file");
    let at = at.filter(|(file, _)| asked.is_none_or(|asked| asked == file));
    let file = match (asked, &at) {
        (Some(asked), _) => asked,
        (None, Some((file, _))) => file.as_str(),
        (None, None) => bundle.entry(),
    };
    let Some(source) = bundle.file(file) else {
        return Err(Problem::new(Code::NotFound, "the blueprint has no such file"));
    };
    let first = match fields.given("cursor").map(str::parse::<usize>) {
        Some(Ok(first)) => first.max(1),
        Some(Err(_)) => {
            return Err(Problem::new(Code::BadQuery, "cursor is not one of this list's"));
        }
        None => at.as_ref().map_or(1, |(_, line)| first_of(*line)),
    };
    let inspects = visitor.caller.may(Verb::RunInspect, view.id).is_ok();
    let rows = Rows { run: view.id, file, lines: &lines, fault: fault.as_ref(), moment, inspects };
    let is_last = source.lines().nth((first - 1).saturating_add(LINES)).is_none();
    let next = (!is_last).then(|| (first + LINES).to_string());
    let query = [("tab", "source"), ("file", file)];
    Ok(html! {
        @if let Some(pane) = &pane { (pane.html) }
        (files(view.id, &bundle, file, &lines))
        div.card.flush tabindex="0" {
            table.listing {
                @for (at, line) in source.lines().enumerate().skip(first - 1).take(LINES) {
                    (rows.row(u32::try_from(at + 1).unwrap_or(u32::MAX), line))
                }
            }
            (pager::links(&format!("/ui/runs/{}", view.id), &query, first == 1, next.as_deref()))
        }
        @if lines.is_empty() && view.steps > 0 {
            p.dim { "The lines of this run's steps are not known: an older release ran it." }
        }
    })
}

/// Returns the list of files, each with the number of steps that it scheduled.
fn files(run: RunId, bundle: &Bundle, shown: &str, lines: &Lines) -> Markup {
    let steps = |file: &str| -> (u32, u32) {
        let own = lines.iter().filter(|((of, _), _)| of == file);
        own.fold((0, 0), |(steps, open), (_, it)| (steps + it.steps, open + it.open))
    };
    html! {
        nav.tabs aria-label="Files of the blueprint" {
            @for file in bundle.files().keys().take(FILES) {
                @let (steps, open) = steps(file);
                a href=(pager::url(&format!("/ui/runs/{run}"), &[("tab", "source"), ("file", file)]))
                    aria-current=[(file == shown).then_some("page")] {
                    code { (text::short(file, 100)) }
                    @if steps > 0 { span.small { " " (steps) @if steps == 1 { " step" } @else { " steps" } } }
                    @if open > 0 { span.small { ", " (open) " open" } }
                }
            }
        }
    }
}

/// The rows of a listing.
struct Rows<'a> {
    run: RunId,
    file: &'a str,
    lines: &'a Lines,
    fault: Option<&'a Fault>,
    /// The line whose locals are shown.
    moment: Option<Place>,
    /// True if the visitor may look at locals.
    inspects: bool,
}

impl Rows<'_> {
    fn row(&self, number: u32, line: &str) -> Markup {
        let marks = self.lines.get(&(self.file.to_owned(), number));
        let is_open = marks.is_some_and(|it| it.open > 0);
        let fault = self.fault.filter(|it| it.is_at(self.file, number));
        let is_moment = self.moment.as_ref().is_some_and(|it| it.0 == self.file && it.1 == number);
        let class = match (marks.is_some(), fault.is_some()) {
            _ if is_moment => Some("hit moment"),
            (_, true) => Some("fault"),
            (true, false) if is_open => Some("hit now"),
            (true, false) => Some("hit"),
            (false, false) => None,
        };
        let (shown, rest) = text::cut(line, WIDTH);
        html! {
            tr id={ "L" (number) } class=[class] {
                td.num { (number) }
                td.code { (text::marked(shown)) @if rest > 0 { "…" } }
                td.marks { @if let Some(marks) = marks { (self.marks(marks)) } }
            }
            @if let Some(fault) = fault { tr { td {} td colspan="2" { (self.fault(fault)) } } }
        }
    }

    fn marks(&self, it: &LineSteps) -> Markup {
        let ended = it.steps - it.open;
        html! {
            a href={ "/ui/runs/" (self.run) "/steps/" (it.latest) } {
                (it.steps) @if it.steps == 1 { " step" } @else { " steps" }
            }
            @if self.inspects { a href=(source_links::locals(self.run, it.latest)) { "locals" } }
            @if it.open > 0 { span.status.busy { @if it.steps == 1 { "waits" } @else { (it.open) " wait" } } }
            @if it.failed > 0 { span.status.bad { (it.failed) " failed" } }
            @if it.canceled > 0 { span.status { (it.canceled) " canceled" } }
            @if ended > 0 { span.dim {
                (time::took(it.ended_ms)) @if ended > 1 { " in all" }
            } }
        }
    }

    fn fault(&self, fault: &Fault) -> Markup {
        html! {
            div.banner.bad {
                p { strong { (text::short(&fault.kind, 60)) } " " (text::line(&fault.message, 2_000)) }
                @if fault.frames.len() > 1 {
                    ol { @for frame in &fault.frames {
                        li {
                            a href=(url(self.run, &frame.place.0, frame.place.1)) {
                                code { (text::short(&frame.place.0, 200)) ":" (frame.place.1) }
                            }
                            @if let Some(name) = &frame.function { " in " code { (text::short(name, 100)) } }
                        }
                    } }
                }
            }
        }
    }
}

/// The failure of the run, where it happened.
struct Fault {
    kind: String,
    message: String,
    /// The calls that were in progress, the innermost first; at least one.
    frames: Vec<Frame>,
}

struct Frame {
    place: Place,
    function: Option<String>,
}

impl Fault {
    fn is_at(&self, file: &str, line: u32) -> bool {
        self.frames.first().is_some_and(|it| it.place.0 == file && it.place.1 == line)
    }
}

/// Returns the failure with its place: that of its traceback, of its step, or of its message.
async fn fault_of(
    desk: &Desk,
    visitor: &Visitor,
    run: RunId,
    bundle: &Bundle,
    error: &FailureView,
) -> Result<Option<Fault>, Problem> {
    let mut frames = traceback(error.data.as_ref());
    if frames.is_empty() {
        let place = match error.step {
            Some(step) => desk.engine.step(&visitor.caller, run, step).await?.line,
            None => None,
        };
        let place = place.as_deref().and_then(leading).or_else(|| leading(&error.message));
        frames.extend(place.map(|place| Frame { place, function: None }));
    }
    frames.retain(|frame| bundle.file(&frame.place.0).is_some());
    let (kind, message) = (error.kind.clone(), error.message.clone());
    Ok((!frames.is_empty()).then_some(Fault { kind, message, frames }))
}

/// Returns the calls of a traceback.
fn traceback(data: Option<&Json>) -> Vec<Frame> {
    let data = data.map(Json::to_value).unwrap_or_default();
    let frames = data.get("traceback").and_then(|it| it.as_array());
    let frame = |it: &serde_json::Value| {
        let line = u32::try_from(it.get("line")?.as_u64()?).ok()?;
        let function = it.get("function").and_then(|it| it.as_str()).map(str::to_owned);
        Some(Frame { place: (it.get("file")?.as_str()?.to_owned(), line), function })
    };
    frames.into_iter().flatten().filter_map(frame).take(FRAMES).collect()
}

/// Returns the place that a text begins with: `main.lua:3` or `main.lua:3: words`.
fn leading(text: &str) -> Option<Place> {
    let (file, rest) = text.split_once(':')?;
    let line = rest.split(':').next()?.trim().parse().ok()?;
    Some((file.to_owned(), line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_message_is_where_it_begins() {
        assert_eq!(leading("main.lua:3: no"), Some(("main.lua".to_owned(), 3)));
        assert_eq!(leading("lib/m.luau:12"), Some(("lib/m.luau".to_owned(), 12)));
        assert_eq!(leading("at 3: no"), None);
        assert_eq!(leading("no"), None);
    }
}
