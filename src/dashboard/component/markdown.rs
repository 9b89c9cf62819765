//! Markdown of models, workers and people, as a safe subset: no markup of theirs, no image, no address
//! but of the web, and each link says where it leads.

use maud::{Markup, PreEscaped, html};
use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::text;
use crate::dashboard::visitor::Visitor;

/// A longer text is shown as it was written, in bytes.
const MOST: usize = 64 << 10;
/// The longest address that becomes a link, in bytes.
const ADDRESS: usize = 2_000;

/// Returns a text as Markdown or, if `raw`, as it was written. A long one is cut unless `whole`.
pub(in crate::dashboard) fn block(words: &str, whole: bool, raw: bool) -> Markup {
    let (shown, rest) = text::cut(words, if whole { usize::MAX } else { text::SHOWN });
    if raw || shown.len() > MOST {
        return text::block(words, whole);
    }
    html! {
        div.prose dir="auto" { (rendered(shown)) }
        @if rest > 0 { p.dim.small { "… and " (rest) " more bytes" } }
    }
}

/// Returns the link that shows the texts of a page as they were written, or as Markdown again. The
/// answer to a form has no address of its own.
pub(in crate::dashboard) fn switch(visitor: &Visitor) -> Markup {
    let plain = without_raw(&visitor.at);
    html! {
        @if visitor.raw() { p.small { a href=(plain) { "Show texts as Markdown" } } }
        @else if visitor.at != "/ui" {
            @let sign = if plain.contains('?') { '&' } else { '?' };
            p.small { a href={ (plain) (sign) "raw=1" } { "Show texts as they were written" } }
        }
    }
}

fn without_raw(at: &str) -> String {
    let (path, query) = at.split_once('?').unwrap_or((at, ""));
    let kept: Vec<_> =
        query.split('&').filter(|pair| !pair.is_empty() && *pair != "raw=1").collect();
    match kept.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", kept.join("&")),
    }
}

fn rendered(words: &str) -> Markup {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut out =
        Out { html: String::with_capacity(words.len() * 2), links: Vec::new(), head: false };
    for event in Parser::new_ext(words, options) {
        out.take(event);
    }
    PreEscaped(out.html)
}

/// The text written so far; the parser closes everything that it opens.
struct Out {
    html: String,
    /// The addresses of the open links and images.
    links: Vec<String>,
    /// True within the head of a table.
    head: bool,
}

impl Out {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.open(tag),
            Event::End(tag) => self.close(tag),
            Event::Text(words) | Event::Html(words) | Event::InlineHtml(words) => self.text(&words),
            Event::Code(words) | Event::InlineMath(words) | Event::DisplayMath(words) => {
                self.push("<code>");
                self.text(&words);
                self.push("</code>");
            }
            Event::SoftBreak | Event::HardBreak => self.push("<br>"),
            Event::Rule => self.push("<hr>"),
            Event::TaskListMarker(done) => self.push(if done { "☑ " } else { "☐ " }),
            Event::FootnoteReference(name) => self.text(&name),
        }
    }

    fn push(&mut self, html: &str) {
        self.html.push_str(html);
    }

    fn text(&mut self, words: &str) {
        self.html.push_str(&text::marked(words).into_string());
    }

    fn open(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => self.push(&format!("<{}>", heading(level))),
            Tag::CodeBlock(kind) => {
                self.push("<pre tabindex=\"0\">");
                if let CodeBlockKind::Fenced(language) = kind
                    && !language.is_empty()
                {
                    let language = text::short(&language, 40);
                    self.push(&html! { span.dim { (language) "\n" } }.into_string());
                }
            }
            Tag::List(Some(from)) => self.push(&format!("<ol start=\"{from}\">")),
            Tag::Link { dest_url, .. } => {
                if is_web(&dest_url) {
                    let start = html! { a href=(dest_url) rel="noopener noreferrer nofollow" {} };
                    self.push(start.into_string().trim_end_matches("</a>"));
                }
                self.links.push(dest_url.into_string());
            }
            Tag::Image { dest_url, .. } => {
                self.push("🖼 ");
                self.links.push(dest_url.into_string());
            }
            Tag::TableHead => {
                self.head = true;
                self.push("<thead><tr>");
            }
            other => {
                if let Some(name) = self.name(&other.to_end()) {
                    self.push(&format!("<{name}>"));
                }
            }
        }
    }

    fn close(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => self.push(&format!("</{}>", heading(level))),
            TagEnd::CodeBlock => self.push("</pre>"),
            TagEnd::List(true) => self.push("</ol>"),
            TagEnd::Link => {
                let to = self.links.pop().unwrap_or_default();
                if is_web(&to) {
                    self.push("</a>");
                }
                self.leads_to(&to);
            }
            TagEnd::Image => {
                let to = self.links.pop().unwrap_or_default();
                self.leads_to(&to);
            }
            TagEnd::TableHead => {
                self.head = false;
                self.push("</tr></thead>");
            }
            other => {
                if let Some(name) = self.name(&other) {
                    self.push(&format!("</{name}>"));
                }
            }
        }
    }

    /// Says where a link leads: its words may say something else.
    fn leads_to(&mut self, to: &str) {
        let host = to.split_once("://").map_or(to, |(_, rest)| rest);
        let host = if is_web(to) { host.split(['/', '?', '#']).next().unwrap_or(host) } else { to };
        let shown = text::short(host, 100);
        self.push(&html! { span.dim.small { " (" (shown) ")" } }.into_string());
    }

    /// Returns the element of what has no attribute; none for what only groups.
    fn name(&self, tag: &TagEnd) -> Option<&'static str> {
        Some(match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => "p",
            TagEnd::BlockQuote(_) => "blockquote",
            TagEnd::List(_) => "ul",
            TagEnd::Item => "li",
            TagEnd::Table => "table",
            TagEnd::TableRow => "tr",
            TagEnd::TableCell if self.head => "th",
            TagEnd::TableCell => "td",
            TagEnd::Emphasis => "em",
            TagEnd::Strong => "strong",
            TagEnd::Strikethrough => "s",
            _ => return None,
        })
    }
}

/// Returns the element of a heading: below those of the page.
fn heading(level: HeadingLevel) -> &'static str {
    match level {
        HeadingLevel::H1 => "h3",
        HeadingLevel::H2 => "h4",
        HeadingLevel::H3 => "h5",
        HeadingLevel::H4 | HeadingLevel::H5 | HeadingLevel::H6 => "h6",
    }
}

/// Returns true for an address that becomes a link.
fn is_web(to: &str) -> bool {
    to.len() <= ADDRESS && (to.starts_with("https://") || to.starts_with("http://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(words: &str) -> String {
        block(words, false, false).into_string()
    }

    #[test]
    fn the_safe_subset_is_rendered() {
        let html = shown(
            "# A\n\nb **c** `d`\ne\n\n- one\n- [x] two\n\n3. x\n\n|a|b|\n|-|-|\n|1|2|\n\n```lua\nx<y\n```",
        );
        for part in [
            "<h3>A</h3>",
            "<p>b <strong>c</strong> <code>d</code><br>e</p>",
            "<ul><li>one</li><li>☑ two</li></ul>",
            "<ol start=\"3\"><li>x</li></ol>",
            "<thead><tr><th>a</th><th>b</th></tr></thead><tr><td>1</td><td>2</td></tr></table>",
            "<pre tabindex=\"0\"><span class=\"dim\">lua\n</span>x&lt;y\n</pre>",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }

    #[test]
    fn markup_images_and_other_addresses_stay_texts() {
        let html = shown(
            "<script>alert(1)</script>\n\nx <img src=x onerror=alert(2)> ![p](https://evil.example/p.png) \
             [j](javascript:alert(3)) [q](https://good.example/\"onmouseover=alert(4)) <b>\u{202e}\u{1b}[0m",
        );
        for evil in
            ["<script", "<img", "href=\"javascript", "\"onmouseover", "<b>", "\u{202e}", "\u{1b}"]
        {
            assert!(!html.contains(evil), "{evil}: {html}");
        }
        assert!(
            html.contains("rel=\"noopener noreferrer nofollow\"")
                && html.contains("(good.example)"),
            "{html}"
        );
        assert!(html.contains("(javascript:alert(3))") && html.contains("🖼 p"), "{html}");
        assert_eq!(html.matches("<a ").count(), html.matches("</a>").count());
    }

    #[test]
    fn a_long_text_is_cut_and_a_very_long_one_is_raw() {
        let html = shown(&"a **b** ".repeat(10_000));
        assert!(html.contains("more bytes") && html.len() < 40_000, "{}", html.len());
        assert!(
            block(&"*x* ".repeat(40_000), true, false).into_string().contains("class=\"text\"")
        );
        assert!(block("**x**", false, true).into_string().contains("**x**"));
        assert_eq!(without_raw("/ui/x?a=1&raw=1"), "/ui/x?a=1");
        assert_eq!(without_raw("/ui/x?raw=1"), "/ui/x");
    }
}
