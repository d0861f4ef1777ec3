//! What a measurement found: a table for people on stdout, or one JSON object.

use serde_json::{Map, Value};

/// Figures in the order they were found: a name for programs, a name for people, and the value as both want it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    json: Map<String, Value>,
}

#[derive(Debug)]
enum Row {
    Heading(String),
    Figure(String, String),
}

impl Report {
    /// A report on `what`.
    pub(crate) fn new(what: &str) -> Report {
        let mut report = Report::default();
        report.json.insert("measurement".to_owned(), what.into());
        report
    }

    /// Starts a part of the table.
    pub(crate) fn heading(&mut self, text: impl Into<String>) {
        self.rows.push(Row::Heading(text.into()));
    }

    /// Adds a figure: `value` for programs under `key`, `shown` for people beside `name`.
    pub(crate) fn figure(
        &mut self,
        key: &str,
        value: impl Into<Value>,
        name: &str,
        shown: impl Into<String>,
    ) {
        self.json.insert(key.to_owned(), value.into());
        self.rows.push(Row::Figure(name.to_owned(), shown.into()));
    }

    /// Adds a size in bytes, shown in MiB.
    pub(crate) fn size(&mut self, key: &str, bytes: u64, name: &str) {
        self.figure(key, bytes, name, format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)));
    }

    /// Adds a duration in milliseconds.
    pub(crate) fn millis(&mut self, key: &str, ms: f64, name: &str) {
        self.figure(key, round(ms, 1), name, format!("{ms:.0} ms"));
    }

    /// Adds a count.
    pub(crate) fn count(&mut self, key: &str, count: u64, name: &str) {
        self.figure(key, count, name, count.to_string());
    }

    /// Prints it.
    pub(crate) fn print(&self, json: bool) {
        if json {
            println!("{}", Value::Object(self.json.clone()));
        } else {
            print!("{}", self.table());
        }
    }

    fn table(&self) -> String {
        let width = self.rows.iter().map(|row| match row {
            Row::Figure(name, _) => name.chars().count(),
            Row::Heading(_) => 0,
        });
        let width = width.max().unwrap_or(0);
        let mut text = String::new();
        for row in &self.rows {
            match row {
                Row::Heading(heading) if text.is_empty() => text.push_str(&format!("{heading}\n")),
                Row::Heading(heading) => text.push_str(&format!("\n{heading}\n")),
                Row::Figure(name, shown) => text.push_str(&format!("  {name:width$}  {shown}\n")),
            }
        }
        text
    }
}

/// `value` with so many decimals, so that JSON does not promise more than was measured.
pub(crate) fn round(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

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
