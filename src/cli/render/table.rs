//! Lists as columns.

use comfy_table::{ContentArrangement, Table, presets};

/// A table without borders; lines are cut to the width of the terminal, if there is one.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row);
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
    fn columns_line_up_without_borders() {
        let rows = [vec!["run_1".into(), "hello".into()], vec!["r".into(), "x".into()]];
        insta::assert_snapshot!(table(&["id", "name"], rows), @r"
        ID     NAME
        run_1  hello
        r      x
        ");
    }
}
