//! `tenure audit`: what operators did, and which sessions ended.

use clap::Args as ClapArgs;
use hyper::Method;
use serde_json::{Value, json};

use super::administer::{Administer, cell};
use crate::exit::Failure;
use crate::output::{print, println, table};
use crate::span;

/// Show what operators did in a mesh, and who came by their leave; newest first. With --sessions: which sessions ended, and why.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    on: Administer,
    /// Show the ends of sessions' leases instead: who, why (expired, bye, banned, kicked) and when, for 30 days; the last 100,000
    #[arg(long)]
    sessions: bool,
    /// How many rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Only rows older than this one
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let before = args.before.map(|seq| format!("&before={seq}")).unwrap_or_default();
    let (list, rows) = if args.sessions { ("lease-ends", "ends") } else { ("audit", "rows") };
    let page = args.on.of_mesh(Method::GET, &format!("/{list}?limit={}{before}", args.limit), None)?;
    let rows = page[rows].as_array().cloned().unwrap_or_default();
    if args.on.json {
        println(&json!(rows).to_string());
        return Ok(());
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = now.as_millis() as u64;
    let (header, fields): (&[&str], &[&str]) = match args.sessions {
        true => (&["ROW", "WHEN", "WHY", "NAME", "SESSION", "MEMBER"], &["why", "name", "session", "member"]),
        false => (
            &["ROW", "WHEN", "ACT", "WHOM", "OUTCOME", "WHO", "FROM"],
            &["act", "subject", "outcome", "who", "from"],
        ),
    };
    let row = |row: &Value| {
        let age = span::short(now.saturating_sub(row["at"].as_u64().unwrap_or_default()));
        let mut cells = vec![cell(row, "seq"), format!("{age} ago")];
        cells.extend(fields.iter().map(|field| cell(row, field)));
        cells
    };
    let shown: Vec<Vec<String>> = rows.iter().map(row).collect();
    print(&table(header, &shown));
    if let Some(next) = page["next"].as_u64() {
        let which = if args.sessions { " --sessions" } else { "" };
        eprintln!("older rows: tenure audit{which} --before {next}");
    }
    Ok(())
}
