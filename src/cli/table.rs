//! Text in columns for people, and CSV for spreadsheets.
//!
//! Model names come from callers: a control character in one must not reach a terminal as what it is.

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Lines under their headings, two spaces between columns, nothing at the ends.
pub fn table(columns: &[(&str, Align)], lines: &[Vec<String>]) -> String {
    let headings: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let shown: Vec<Vec<String>> =
        std::iter::once(&headings).chain(lines).map(|line| line.iter().map(|cell| harmless(cell)).collect()).collect();
    let width = |column: usize| {
        shown.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for line in &shown {
        let cells = line.iter().zip(columns).zip(&widths).map(|((cell, (_, align)), width)| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        let cells: Vec<String> = cells.collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Comma-separated, quoted where a comma, a quote or a line break asks for it.
pub fn csv(columns: &[&str], lines: &[Vec<String>]) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
        cells.join(",") + "\n"
    };
    let headings: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    std::iter::once(&headings).chain(lines).map(|cells| line(cells)).collect()
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

fn harmless(cell: &str) -> String {
    let escaped = |letter: char| if letter.is_control() { letter.escape_default().to_string() } else { letter.into() };
    cell.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_numbers_stand_right() {
        let columns = [("NODE", Align::Left), ("REQUESTS", Align::Right)];
        let text = table(&columns, &[line(&["org:acme", "7"]), line(&["ü", "12345"])]);
        assert_eq!(text, "NODE      REQUESTS\norg:acme         7\nü            12345\n");
    }

    #[test]
    fn a_model_name_cannot_move_the_cursor() {
        assert!(table(&[("MODEL", Align::Left)], &[line(&["a\u{1b}[2Jb"])]).contains(r"a\u{1b}[2Jb"));
    }

    #[test]
    fn csv_quotes_what_would_break_a_line() {
        let text = csv(&["model", "requests"], &[line(&["a,\"b\"\n", "1"]), line(&["", "2"])]);
        assert_eq!(text, "model,requests\n\"a,\"\"b\"\"\n\",1\n,2\n");
    }
}
