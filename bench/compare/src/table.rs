//! Tables of what was found, for a terminal, a page and a document alike: rows of text.

use super::figures::{name, sorted};
use super::findings::{Break, Case, Findings, Workload};
use super::plot::amount;
use tenure_bench::sample::median;

/// A table with a title, its columns' names, and rows.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    fn new(title: impl Into<String>, columns: &[&'static str]) -> Table {
        Table { title: title.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// As lines for a terminal: names to the left, figures to the right.
    pub(crate) fn lines(&self) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            cells.chain(self.columns.get(at).map(|name| name.chars().count())).max().unwrap_or(0)
        };
        let last = self.columns.len().saturating_sub(1);
        let line = |cells: Vec<&str>| {
            let cells = cells.iter().enumerate().map(|(at, cell)| {
                let width = width(at);
                if at == 0 || at == last { format!("{cell:width$}") } else { format!("{cell:>width$}") }
            });
            format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        let mut text = format!("\n{}\n{}", self.title, line(self.columns.clone()));
        for row in &self.rows {
            text.push_str(&line(row.iter().map(String::as_str).collect()));
        }
        text
    }

    /// As Markdown.
    pub(crate) fn markdown(&self) -> String {
        let row = |cells: &mut dyn Iterator<Item = String>| {
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let mut text = row(&mut self.columns.iter().map(|name| (*name).to_owned()));
        let last = self.columns.len().saturating_sub(1);
        let rule = |at| if at == 0 || at == last { "---" } else { "---:" };
        text.push_str(&row(&mut (0..self.columns.len()).map(|at| rule(at).to_owned())));
        for cells in &self.rows {
            text.push_str(&row(&mut cells.iter().map(|cell| cell.replace('|', "\\|"))));
        }
        text
    }
}

/// All tables, in the order of workloads.
pub(crate) fn all(findings: &Findings) -> Vec<Table> {
    let mut tables = Vec::new();
    let workloads = [Workload::Publish, Workload::Flow, Workload::PacedConfirm, Workload::PacedReceive];
    for case in workloads.iter().flat_map(|workload| findings.cases(*workload)) {
        // At a fixed rate so little is spent that the kernel's clock of it, a hundredth of a second, is most of the figure.
        let cost = matches!(case.workload, Workload::Publish | Workload::Flow);
        let mut columns = vec!["system", "a second", "noise", "p50 ms", "p99 ms", "p99.9 ms"];
        if cost {
            columns.extend(["server CPU s/M", "client CPU s/M"]);
        }
        columns.push("durable when answered");
        let title = format!("{}. {case}", number(case.workload));
        let mut table = Table::new(title, &columns);
        for series in sorted(findings, &case) {
            let mut row = vec![
                name(findings, series.system),
                thousands(series.median(|stretch| stretch.per_second)),
                format!("{:.2}", series.noise()),
                amount(series.median(|stretch| stretch.p50_ms)),
                amount(series.median(|stretch| stretch.p99_ms)),
                amount(series.median(|stretch| stretch.p999_ms)),
            ];
            if cost {
                row.push(amount(series.median(|stretch| stretch.server_cpu)));
                row.push(amount(series.median(|stretch| stretch.client_cpu)));
            }
            let ack = ack(findings, &case, series.system);
            row.push(format!("{}{ack}{}", durable(findings, series.system), wrong(series)));
            table.rows.push(row);
        }
        for series in findings.series.iter().filter(|series| series.case == case && series.rounds.is_empty())
        {
            let mut row = vec![String::new(); columns.len()];
            row[0] = name(findings, series.system);
            row[columns.len() - 1] =
                format!("failed: {}", series.failures.first().cloned().unwrap_or_default());
            table.rows.push(row);
        }
        tables.push(table);
    }
    tables.extend(idle(findings));
    tables.extend(storms(findings));
    tables.extend(recoveries(findings));
    tables.extend(skipped(findings));
    tables.push(claims(findings));
    tables
}

fn number(workload: Workload) -> u8 {
    match workload {
        Workload::Publish => 1,
        Workload::Flow => 2,
        Workload::PacedConfirm | Workload::PacedReceive => 3,
    }
}

fn durable(findings: &Findings, system: &str) -> String {
    match system {
        super::publish::FLOOR_APPEND => "synced to the disk".to_owned(),
        super::publish::FLOOR_ECHO | super::publish::FLOOR_TOGETHER => "nothing".to_owned(),
        other => {
            let found = findings.systems.iter().find(|system| system.key == other);
            found.map_or_else(String::new, |system| system.durable.to_owned())
        }
    }
}

/// What an ack's answer promises, where acks are what is counted.
fn ack(findings: &Findings, case: &Case, system: &str) -> String {
    let found = findings.systems.iter().find(|found| found.key == system);
    match found.filter(|_| case.workload == Workload::Flow) {
        Some(found) => format!("; an ack: {}", found.ack),
        None => String::new(),
    }
}

/// What went wrong in rounds that count.
fn wrong(series: &super::findings::Series) -> String {
    let missing: u64 = series.rounds.iter().map(|stretch| stretch.missing).sum();
    let doubled: u64 = series.rounds.iter().map(|stretch| stretch.doubled).sum();
    let parts = [
        (missing, format!("{missing} missing")),
        (doubled, format!("{doubled} doubled")),
        (series.failures.len() as u64, format!("{} rounds failed", series.failures.len())),
    ];
    parts.into_iter().filter(|(count, _)| *count > 0).map(|(_, said)| format!("; {said}")).collect()
}

/// A count with its thousands apart.
fn thousands(count: f64) -> String {
    if !count.is_finite() {
        return "–".to_owned();
    }
    let digits = format!("{count:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn idle(findings: &Findings) -> Option<Table> {
    let columns = [
        "system",
        "sessions",
        "KB each",
        "MiB empty",
        "MiB full",
        "CPU of one core",
        "connected in s",
        "a session is",
    ];
    let mut table = Table::new("4. Idle sessions, looked at once", &columns);
    let mut rows: Vec<_> = findings.idle.iter().collect();
    rows.sort_by(|left, right| {
        (left.sessions, left.bytes_per_session)
            .partial_cmp(&(right.sessions, right.bytes_per_session))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    for idle in rows {
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        table.rows.push(vec![
            name(findings, idle.system),
            thousands(idle.sessions as f64),
            format!("{:.2}", idle.bytes_per_session / 1_000.0),
            mib(idle.empty_bytes),
            mib(idle.full_bytes),
            format!("{:.2} %", idle.idle_percent),
            format!("{:.1}", idle.connect_seconds),
            idle.what.to_owned(),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn storms(findings: &Findings) -> Vec<Table> {
    let columns = [
        "system",
        "sessions",
        "rounds",
        "p50 ms",
        "p95 ms",
        "last ms",
        "never back",
        "presence events",
        "confirmed",
        "lost",
        "doubled",
        "presence by",
    ];
    let mut tables = Vec::new();
    for (how, title) in [
        (Break::Cut, "5. Every socket cut at once, the server lives"),
        (Break::Restart, "5. The server killed with -9 and started again at once"),
    ] {
        let mut table = Table::new(title, &columns);
        for storm in findings.storms.iter().filter(|storm| storm.how == how) {
            let counted = |count: u64| {
                if storm.confirmed.is_some() { thousands(count as f64) } else { "–".to_owned() }
            };
            table.rows.push(vec![
                name(findings, storm.system),
                thousands(storm.sessions as f64),
                storm.rounds.to_string(),
                amount(storm.p50_ms),
                amount(storm.p95_ms),
                amount(storm.last_ms),
                storm.never_back.to_string(),
                storm.presence_events.map_or_else(|| "–".to_owned(), |events| thousands(events as f64)),
                counted(storm.confirmed.unwrap_or(0)),
                counted(storm.lost),
                counted(storm.doubled),
                storm.presence_by.to_owned(),
            ]);
        }
        if !table.rows.is_empty() {
            tables.push(table);
        }
    }
    tables
}

fn recoveries(findings: &Findings) -> Option<Table> {
    let columns = [
        "system",
        "backlog",
        "filled in s",
        "kills",
        "new publish ms",
        "old message ms",
        "lost",
        "doubled",
        "again, not acked",
        "durable when answered",
    ];
    let mut table = Table::new("6. Kill -9 with a backlog", &columns);
    for recovery in &findings.recoveries {
        let backlog = thousands(recovery.confirmed as f64);
        table.rows.push(vec![
            name(findings, recovery.system),
            if recovery.full { backlog } else { format!("{backlog} (time was up)") },
            amount(recovery.fill_seconds),
            recovery.publish_ms.len().to_string(),
            amount(median(recovery.publish_ms.iter().copied())),
            amount(median(recovery.deliver_ms.iter().copied())),
            thousands(recovery.lost as f64),
            thousands(recovery.doubled as f64),
            thousands(recovery.again as f64),
            durable(findings, recovery.system),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn skipped(findings: &Findings) -> Option<Table> {
    let mut table = Table::new("Left out, and why", &["system", "workload", "why"]);
    for skipped in &findings.skipped {
        let workload = skipped.workload.unwrap_or("all").to_owned();
        table.rows.push(vec![name(findings, skipped.key), workload, skipped.why.clone()]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn claims(findings: &Findings) -> Table {
    let mut table = Table::new("What we claim, and what this run found", &["claim", "holds", "found"]);
    for claim in &findings.claims {
        let holds = match claim.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "–",
        };
        table.rows.push(vec![claim.claim.clone(), holds.to_owned(), claim.found.clone()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up_for_a_terminal_and_is_markdown() {
        let mut table = Table::new("T", &["system", "a second", "durable"]);
        table.rows.push(vec!["a".into(), thousands(12_345.0), "x|y".into()]);
        assert_eq!(table.lines(), "\nT\n  system  a second  durable\n  a         12,345  x|y\n");
        assert_eq!(
            table.markdown(),
            "| system | a second | durable |\n| --- | ---: | --- |\n| a | 12,345 | x\\|y |\n"
        );
    }
}
