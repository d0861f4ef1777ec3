//! One self-contained HTML page, and the document with its images.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::figures::{self, Figure};
use super::findings::{Findings, System};
use super::machine::Machine;
use super::plot::escaped;
use super::table::{self, Table};

/// How a reader should take the figures; the same words on the page and in the document.
const NOTES: [&str; 9] = [
    "Everything runs on one machine over loopback: server and load share its cores. Figures are medians over rounds; \
     within a round every system is measured once, in another order each round. Noise is the largest round over the \
     smallest. Believe ratios, not digits.",
    "Two floors are measured in every run: the same bytes appended to a file with one fdatasync for whatever waits \
     together, and a bare WebSocket that echoes frames of the same sizes on the library that the broker uses, to the same \
     client. It answers one by one, as anybody would write it; one that answers together what came together, as the broker \
     does, is shown beside it.",
    "Each system is spoken to by the client that its users use. Ours is spoken to twice: by a bare client that builds its \
     frames once (Tenure), as the echo floor is, and by our SDK. The processor time of clients stands beside that of \
     servers, so that it can be seen where a client is what limits.",
    "Publishes under way are spread over at most 64 connections, for every system.",
    "Workload 2 keeps a bounded number of messages in flight; what counts are deliveries whose ack was answered, or sent \
     where a system answers none. Workload 3 takes every time from when a message was due, whatever became of those before it.",
    "A stretch of a slow system lasts until as many were answered as are outstanding (at most ten seconds), so that whoever \
     answers thousands together is not seen between two answers. Before each stretch all that was written by whoever came \
     before is synced.",
    "Workload 5 sends messages to the sessions meanwhile. Lost is what was confirmed and had not come a hundred seconds \
     after the last break (in a quick run eight), doubled what an application was given twice. Clients wait up to a \
     quarter of a second before their first dial, everywhere.",
    "A quick run has one break of few sessions and two kills, and leaves out the less durable of two configurations in \
     workloads 3 and 6.",
    "Where a system has no equivalent it is left out and that is said, rather than the workload bent.",
];

/// The page.
pub(crate) fn html(findings: &Findings) -> String {
    let mut page = String::from(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>\
         <title>Tenure beside its peers</title><style>\
         body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#111827;background:#fff}\
         h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}table{border-collapse:collapse;font-size:13px;width:100%}\
         .w{overflow-x:auto}td,th{padding:.25rem .6rem;border-bottom:1px solid #e5e7eb;text-align:right;vertical-align:top}\
         td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}tr.o td{font-weight:600;color:#1d4ed8}\
         svg{max-width:100%;height:auto}figure{margin:1rem 0}.n{color:#4b5563}</style></head><body>",
    );
    let _ = write!(page, "<h1>Tenure beside its peers</h1><p class='n'>{}</p>", escaped(&about(findings)));
    let tables = table::all(findings);
    if let Some(claims) = tables.last() {
        let _ = write!(page, "{}", html_table(claims));
    }
    page.push_str("<h2>How to read this</h2><ul>");
    for note in NOTES {
        let _ = write!(page, "<li>{}</li>", escaped(note));
    }
    page.push_str("</ul><h2>Systems and their configuration</h2>");
    for System { name, version, client, durable, ack, config, .. } in &findings.systems {
        let config = config.join("; ");
        let _ = write!(
            page,
            "<p><b>{}</b> {} by {}. When a publish is answered: {}. An ack: {}. {}.</p>",
            escaped(name),
            escaped(version),
            escaped(client),
            escaped(durable),
            escaped(ack),
            escaped(&config)
        );
    }
    page.push_str("<h2>Plots</h2>");
    for Figure { svg, .. } in figures::all(findings) {
        let _ = write!(page, "<figure>{svg}</figure>");
    }
    page.push_str("<h2>Tables</h2>");
    let but_claims = tables.len().saturating_sub(1);
    for table in tables.iter().take(but_claims) {
        page.push_str(&html_table(table));
    }
    page.push_str("</body></html>\n");
    page
}

fn html_table(table: &Table) -> String {
    let mut html = format!("<h2>{}</h2><div class='w'><table><tr>", escaped(&table.title));
    for column in &table.columns {
        let _ = write!(html, "<th>{}</th>", escaped(column));
    }
    html.push_str("</tr>");
    for row in &table.rows {
        let ours = row.first().is_some_and(|name| name.starts_with("Tenure"));
        html.push_str(if ours { "<tr class='o'>" } else { "<tr>" });
        for cell in row {
            let _ = write!(html, "<td>{}</td>", escaped(cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</table></div>");
    html
}

/// The run in a sentence.
pub(crate) fn about(findings: &Findings) -> String {
    let Machine { processor, cores, memory_bytes, kernel, system, disk, load_before, date } =
        &findings.machine;
    format!(
        "{} run of {date} UTC on {processor}, {cores} cores, {:.0} GiB, {system}, Linux {kernel}, data on {disk}; load average \
         before {load_before:.1}; workloads 1 to 3 are medians of {} rounds, stretches of {} s; {} after {} s.",
        if findings.quick { "Quick" } else { "Full" },
        *memory_bytes as f64 / f64::from(1 << 30),
        findings.rounds,
        findings.stretch_seconds,
        if findings.complete { "complete" } else { "not complete" },
        findings.seconds
    )
}

/// Writes `benchmarks.md` and its images into the documentation at `dir`.
pub(crate) fn document(findings: &Findings, dir: &Path) -> Result<()> {
    let images = dir.join("benchmarks");
    // Images of a run before this one are not of this document.
    let _ = std::fs::remove_dir_all(&images);
    std::fs::create_dir_all(&images).with_context(|| format!("make {}", images.display()))?;
    let mut text = String::from("# Benchmarks\n\n");
    let _ = writeln!(text, "{}\n", about(findings));
    text.push_str(
        "Written by `cargo xtask bench compare --docs docs`; `cargo xtask bench setup` installs the peers. `--quick` takes about \
         ten minutes, a full run an hour and a half.\n\n",
    );
    let tables = table::all(findings);
    let (claims, tables) = tables.split_last().context("there are no tables")?;
    let _ = writeln!(text, "## {}\n\n{}", claims.title, claims.markdown());
    text.push_str("## How to read this\n\n");
    for note in NOTES {
        let _ = writeln!(text, "- {note}");
    }
    text.push_str("\n## Systems and their configuration\n\n");
    for System { name, version, client, durable, ack, config, .. } in &findings.systems {
        let _ = writeln!(
            text,
            "- **{name}** {version} by {client}. When a publish is answered: {durable}. An ack: {ack}. {}.",
            config.join("; ")
        );
    }
    text.push_str("\n## Plots\n\n");
    for Figure { name, title, svg, .. } in figures::all(findings).into_iter().filter(|figure| figure.main) {
        std::fs::write(images.join(format!("{name}.svg")), svg)
            .with_context(|| format!("write {name}.svg"))?;
        let _ = writeln!(text, "![{title}](benchmarks/{name}.svg)\n");
    }
    text.push_str("## Tables\n\n");
    for table in tables {
        let _ = writeln!(text, "### {}\n\n{}", table.title, table.markdown());
    }
    let file = dir.join("benchmarks.md");
    std::fs::write(&file, text.trim_end().to_owned() + "\n")
        .with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::super::findings::{Case, Stretch, Workload};
    use super::*;

    #[test]
    fn page_and_document_show_every_series_and_fetch_nothing() {
        let case = Case { workload: Workload::Publish, body: 1024, load: 256, readers: "" };
        let mut findings = Findings::default();
        findings.round(&case, "floor-echo", Ok(Stretch { per_second: 1_234.0, ..Stretch::default() }));
        findings.round(&case, "tenure", Err(anyhow::anyhow!("it <broke>")));
        let page = html(&findings);
        assert!(page.contains("floor: bare WebSocket echo") && page.contains("it &lt;broke&gt;"));
        assert!(!page.contains("<script") && !page.contains("src="));
        let dir = tempfile::tempdir().unwrap();
        document(&findings, dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join("benchmarks.md")).unwrap();
        assert!(text.contains("1,234") && text.contains("benchmarks/publish-1024-256.svg"));
        assert!(dir.path().join("benchmarks/publish-1024-256.svg").is_file());
    }
}
