//! `tenure audit`: what operators did.

use clap::Args as ClapArgs;
use hyper::Method;
use serde_json::{Value, json};

use super::administer::{Administer, cell};
use crate::exit::Failure;
use crate::output::{print, println, table};
use crate::span;

/// Show what operators did in a mesh, and who came by their leave; newest first.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    on: Administer,
    /// How many rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Only rows older than this one
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let before = args.before.map(|seq| format!("&before={seq}")).unwrap_or_default();
    let page = args.on.of_mesh(Method::GET, &format!("/audit?limit={}{before}", args.limit), None)?;
    let rows = page["rows"].as_array().cloned().unwrap_or_default();
    if args.on.json {
        println(&json!(rows).to_string());
        return Ok(());
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = now.as_millis() as u64;
    let row = |row: &Value| {
        let age = span::short(now.saturating_sub(row["at"].as_u64().unwrap_or_default()));
        let mut cells = vec![cell(row, "seq"), format!("{age} ago")];
        cells.extend(["act", "subject", "outcome", "who", "from"].map(|field| cell(row, field)));
        cells
    };
    let shown: Vec<Vec<String>> = rows.iter().map(row).collect();
    print(&table(&["ROW", "WHEN", "ACT", "WHOM", "OUTCOME", "WHO", "FROM"], &shown));
    if let Some(next) = page["next"].as_u64() {
        eprintln!("older rows: tenure audit --before {next}");
    }
    Ok(())
}
