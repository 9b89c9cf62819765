//! The difference of two renderings of a fragment: what did not change is named by its place.
//!
//! A text is cut before each `<`, here and in `live.js` alike, so a piece is a tag with the text after
//! it. Texts of others are escaped and contain no `<`.

use serde::Serialize;

/// The number of pieces within which texts that differ have to be alike again.
const AHEAD: usize = 64;
/// The maximum number of comparisons. Texts that differ more are sent whole.
const COMPARED: usize = 200_000;

/// A part of the new text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Part<'t> {
    /// Pieces of the old text: the number of the first one, and how many.
    Old(usize, usize),
    /// New text.
    New(&'t str),
}

/// Returns the parts that `new` is made of; `None` if it differs too much from `old`.
pub(super) fn between<'t>(old: &str, new: &'t str) -> Option<Vec<Part<'t>>> {
    let (old, (cuts, new_pieces)) = (pieces(old).1, pieces(new));
    let head = old.iter().zip(&new_pieces).take_while(|(a, b)| a == b).count();
    let tails = old[head..].iter().rev().zip(new_pieces[head..].iter().rev());
    let tail = tails.take_while(|(a, b)| a == b).count();
    let (old_end, new_end) = (old.len() - tail, new_pieces.len() - tail);
    let mut parts = Vec::new();
    let (mut at, mut next, mut left) = (head, head, COMPARED);
    push_old(&mut parts, 0, head);
    while next < new_end {
        let (before, after) = (&old[at..old_end], &new_pieces[next..new_end]);
        let same = before.iter().zip(after).take_while(|(a, b)| a == b).count();
        push_old(&mut parts, at, same);
        (at, next) = (at + same, next + same);
        let (gone, come) = until_alike(&before[same..], &after[same..], &mut left)?;
        if come > 0 {
            parts.push(Part::New(&new[cuts[next]..cuts[next + come]]));
        }
        (at, next) = (at + gone, next + come);
    }
    push_old(&mut parts, old_end, tail);
    Some(parts)
}

fn push_old(parts: &mut Vec<Part<'_>>, from: usize, count: usize) {
    if count > 0 {
        parts.push(Part::Old(from, count));
    }
}

/// Returns the pieces of a text, and where each begins, with the end of the text.
fn pieces(text: &str) -> (Vec<usize>, Vec<&str>) {
    let tags = text.match_indices('<').map(|(at, _)| at).filter(|at| *at > 0);
    let cuts: Vec<usize> = std::iter::once(0).chain(tags).chain([text.len()]).collect();
    let pieces = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
    (cuts, pieces)
}

/// Returns how many pieces were removed and added until two pieces in a row are alike again; `None` if
/// that is too much to look for.
fn until_alike(before: &[&str], after: &[&str], left: &mut usize) -> Option<(usize, usize)> {
    if before.is_empty() || after.is_empty() {
        return Some((before.len(), after.len()));
    }
    let most = before.len() + after.len();
    for both in 1..most.min(AHEAD) {
        for gone in both.saturating_sub(after.len())..=both.min(before.len()) {
            let come = both - gone;
            let (b, a) = (&before[gone..], &after[come..]);
            *left = left.checked_sub(1)?;
            if !b.is_empty() && b.iter().take(2).eq(a.iter().take(2)) {
                return Some((gone, come));
            }
        }
    }
    match most < AHEAD {
        true => Some((before.len(), after.len())),
        false => Some((1, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a text together, as `live.js` does.
    fn applied(old: &str, parts: &[Part<'_>]) -> String {
        let old = pieces(old).1;
        let text = |part: &Part<'_>| match *part {
            Part::Old(from, count) => old[from..from + count].concat(),
            Part::New(text) => text.to_owned(),
        };
        parts.iter().map(text).collect()
    }

    fn rows(numbers: impl IntoIterator<Item = u32>, width: u32) -> String {
        let row = |n| format!("<tr><td>{n}</td><td><rect x=\"{}\"></rect></td></tr>", n * width);
        let rows: String = numbers.into_iter().map(row).collect();
        format!("<table><tbody>{rows}</tbody></table>")
    }

    #[test]
    fn the_parts_make_the_new_text() {
        let long = rows(0..400, 7);
        for (old, new) in [
            ("", "<p>a</p>"),
            ("<p>a</p>", ""),
            ("<p>a</p>", "<p>a</p>"),
            ("a<b>c", "x<b>c<b>c"),
            ("<i><i><i>", "<i><i>"),
            (&rows(0..9, 1), &rows(2..12, 1)),
            (&rows(0..9, 1), &rows(0..9, 3)),
            (&rows(0..40, 1), &rows((0..20).chain(25..60), 2)),
            (&long, "<p>gone</p>"),
            ("<p>come</p>", &long),
        ] {
            let parts = between(old, new).unwrap();
            assert_eq!(applied(old, &parts), new, "{parts:?}");
        }
    }

    #[test]
    fn only_what_changed_is_new() {
        let (old, new) = (rows(0..100, 1), rows(0..101, 1));
        let row = "<tr><td>100</td><td><rect x=\"100\"></rect></td></tr>";
        let pieces = 2 + 100 * 8;
        let parts = between(&old, &new).unwrap();
        assert_eq!(parts, [Part::Old(0, pieces), Part::New(row), Part::Old(pieces, 2)]);
        let moved = rows(0..100, 2);
        let parts = between(&new, &moved).unwrap();
        let sent: usize = parts
            .iter()
            .map(|part| match part {
                Part::New(text) => text.len(),
                Part::Old(..) => 0,
            })
            .sum();
        assert!(sent < moved.len() / 3, "{sent} of {}", moved.len());
        assert_eq!(serde_json::to_string(&parts[..2]).unwrap(), "[[0,14],\"<rect x=\\\"2\\\">\"]");
    }

    #[test]
    fn texts_that_differ_too_much_are_not_compared_to_the_end() {
        let other = |sign: &str| (0..5_000).map(|n| format!("<{sign}{n}>")).collect::<String>();
        assert_eq!(between(&other("a"), &other("b")), None);
    }
}
