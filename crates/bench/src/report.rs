//! What a measurement found: a table for people on stdout, or one JSON object.

use serde_json::{Map, Value};

/// Figures in the order they were found: a name for programs, a name for people, and the value as both want it.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    json: Map<String, Value>,
}

#[derive(Debug)]
enum Row {
    Heading(String),
    Figure(String, String),
    Line(String),
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    value: Value,
    shown: String,
}

impl Cell {
    /// A name.
    pub fn text(text: &str) -> Cell {
        Cell { value: text.into(), shown: text.to_owned() }
    }

    /// A count, with its thousands apart.
    pub fn count(count: f64) -> Cell {
        Cell { value: round(count, 0).into(), shown: thousands(count) }
    }

    /// A number with so many decimals.
    pub fn number(value: f64, decimals: i32) -> Cell {
        let shown =
            if value.is_finite() { format!("{value:.*}", decimals.max(0) as usize) } else { "–".into() };
        Cell { value: round(value, decimals).into(), shown }
    }

    /// A share of one, shown in per cent.
    pub fn share(value: f64) -> Cell {
        let shown = if value.is_finite() { format!("{:.0} %", value * 100.0) } else { "–".into() };
        Cell { value: round(value, 3).into(), shown }
    }
}

fn thousands(count: f64) -> String {
    let digits = format!("{count:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Report {
    /// A report on `what`.
    pub fn new(what: &str) -> Report {
        let mut report = Report::default();
        report.json.insert("measurement".to_owned(), what.into());
        report
    }

    /// Starts a part of the table.
    pub fn heading(&mut self, text: impl Into<String>) {
        self.rows.push(Row::Heading(text.into()));
    }

    /// Adds a figure: `value` for programs under `key`, `shown` for people beside `name`.
    pub fn figure(&mut self, key: &str, value: impl Into<Value>, name: &str, shown: impl Into<String>) {
        self.json.insert(key.to_owned(), value.into());
        self.rows.push(Row::Figure(name.to_owned(), shown.into()));
    }

    /// Adds a figure for programs alone.
    pub fn number(&mut self, key: &str, value: impl Into<Value>) {
        self.json.insert(key.to_owned(), value.into());
    }

    /// Adds a size in bytes, shown in MiB.
    pub fn size(&mut self, key: &str, bytes: u64, name: &str) {
        self.figure(key, bytes, name, format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)));
    }

    /// Adds a duration in milliseconds.
    pub fn millis(&mut self, key: &str, ms: f64, name: &str) {
        self.figure(key, round(ms, 1), name, format!("{ms:.0} ms"));
    }

    /// Adds a count.
    pub fn count(&mut self, key: &str, count: u64, name: &str) {
        self.figure(key, count, name, count.to_string());
    }

    /// Adds a sentence for people.
    pub fn say(&mut self, line: impl Into<String>) {
        self.rows.push(Row::Line(line.into()));
    }

    /// Adds a table: for people as columns under their names, for programs as objects under `key`. A cell is a
    /// number for programs and what people read; a column is named for both.
    pub fn grid(&mut self, key: &str, columns: &[(&str, &str)], rows: &[Vec<Cell>]) {
        let objects = rows.iter().map(|row| {
            let fields = columns.iter().zip(row);
            Value::Object(fields.map(|((key, _), cell)| ((*key).to_owned(), cell.value.clone())).collect())
        });
        self.json.insert(key.to_owned(), objects.collect());
        let width = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.shown.chars().count());
            cells.chain([columns[at].1.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells = cells.zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
            cells.collect::<Vec<_>>().join("  ")
        };
        self.say(line(&mut columns.iter().map(|(_, name)| *name)));
        for row in rows {
            self.say(line(&mut row.iter().map(|cell| cell.shown.as_str())));
        }
    }

    /// Prints it.
    pub fn print(&self, json: bool) {
        if json {
            println!("{}", Value::Object(self.json.clone()));
        } else {
            print!("{}", self.table());
        }
    }

    fn table(&self) -> String {
        let width = self.rows.iter().map(|row| match row {
            Row::Figure(name, _) => name.chars().count(),
            Row::Heading(_) | Row::Line(_) => 0,
        });
        let width = width.max().unwrap_or(0);
        let mut text = String::new();
        for row in &self.rows {
            match row {
                Row::Heading(heading) if text.is_empty() => text.push_str(&format!("{heading}\n")),
                Row::Heading(heading) => text.push_str(&format!("\n{heading}\n")),
                Row::Line(line) => text.push_str(&format!("  {line}\n")),
                Row::Figure(name, shown) => text.push_str(&format!("  {name:width$}  {shown}\n")),
            }
        }
        text
    }
}

/// `value` with so many decimals, so that JSON does not promise more than was measured.
pub fn round(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_lines_up_and_is_a_list_of_objects() {
        let mut report = Report::new("test");
        let row = vec![Cell::count(12_345.4), Cell::share(0.614)];
        report.grid("rows", &[("perSecond", "a second"), ("share", "of it")], &[row]);
        assert_eq!(report.table(), "  a second  of it\n    12,345   61 %\n");
        let json =
            serde_json::json!({"measurement": "test", "rows": [{"perSecond": 12345.0, "share": 0.614}]});
        assert_eq!(Value::Object(report.json), json);
    }

    #[test]
    fn a_table_lines_up_and_the_object_has_the_same_figures() {
        let mut report = Report::new("test");
        report.heading("First");
        report.size("rss", 3 << 20, "memory");
        report.heading("Second");
        report.millis("p50Ms", 12.34, "p50 of something");
        assert_eq!(
            report.table(),
            "First\n  memory            3.0 MiB\n\nSecond\n  p50 of something  12 ms\n"
        );
        assert_eq!(
            Value::Object(report.json),
            serde_json::json!({"measurement": "test", "rss": 3 << 20, "p50Ms": 12.3})
        );
    }
}
