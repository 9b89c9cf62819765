//! Lists as columns.

use comfy_table::{ContentArrangement, Table, presets};

use crate::protocol::plain::one_line;

/// A table without borders, a line for each row whatever is in its cells.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
