//! Lists as columns.

use comfy_table::{ContentArrangement, Table, presets};

use console::measure_text_width;

use super::text::cut;
use crate::protocol::plain::one_line;

/// Columns between two columns.
const GAP: usize = 2;
/// No column is made narrower.
const NARROW: usize = 8;
/// Columns whose cells are typed into other commands.
const WHOLE: [&str; 7] = ["run", "task", "token", "session", "name", "file", "function"];

/// A table without borders, a line for each row whatever is in its cells.
fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row.iter().map(|cell| one_line(cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The same with lines of at most `width` columns, where there is a limit: the widest column gives
/// way, but never one that holds what other commands take.
pub fn fitted(
    width: Option<usize>,
    head: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let Some(width) = width else { return table(head, rows) };
    let mut rows: Vec<Vec<String>> = rows.into_iter().collect();
    for row in &mut rows {
        row.iter_mut().for_each(|cell| *cell = one_line(cell));
    }
    let mut wide: Vec<usize> = head.iter().map(|name| measure_text_width(name)).collect();
    for row in &rows {
        for (at, cell) in wide.iter_mut().zip(row) {
            *at = (*at).max(measure_text_width(cell));
        }
    }
    let gaps = GAP * head.len().saturating_sub(1);
    let mut over = (wide.iter().sum::<usize>() + gaps).saturating_sub(width);
    while over > 0 {
        let elastic = wide.iter().zip(head).enumerate();
        let elastic = elastic.filter(|(_, (at, name))| **at > NARROW && !WHOLE.contains(name));
        let Some((column, _)) = elastic.max_by_key(|(_, (at, _))| **at) else { break };
        wide[column] -= 1;
        over -= 1;
    }
    for row in &mut rows {
        for (cell, at) in row.iter_mut().zip(&wide) {
            *cell = cut(cell, *at);
        }
    }
    table(head, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_column_gives_way_and_ids_do_not() {
        let row = vec!["task_01234567890123456789".into(), "s".repeat(90), "d".repeat(30)];
        let shown = fitted(Some(60), &["task", "agent", "about"], vec![row.clone()]);
        assert!(shown.lines().all(|line| measure_text_width(line) <= 60), "{shown}");
        assert!(shown.contains("task_01234567890123456789  sss"), "{shown}");
        assert!(shown.contains("s…  ddd"), "{shown}");
        assert!(fitted(None, &["task", "agent", "about"], vec![row]).contains(&"s".repeat(90)));
    }

    #[test]
    fn a_cell_makes_no_row_of_its_own() {
        let shown = table(&["id"], [vec!["a\nb\u{1b}[2J".to_owned()]]);
        assert_eq!(shown, "ID\na b [2J\n");
    }

    #[test]
    fn columns_line_up_without_borders() {
        let rows = [vec!["run_1".into(), "hello".into()], vec!["r".into(), "x".into()]];
        insta::assert_snapshot!(table(&["id", "name"], rows), @r"
        ID     NAME
        run_1  hello
        r      x
        ");
    }
}
