//! `tenure kick`: end a session now.

use clap::Args as ClapArgs;
use hyper::Method;
use serde_json::json;

use super::administer::Administer;
use crate::exit::Failure;
use crate::local::escaped;
use crate::output::println;

/// End a session now, and all that hangs off its lease. It may come back; to keep it out, `tenure ban`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// The session's key
    session: String,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    on: Administer,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let key = args.session.strip_prefix("session:").unwrap_or(&args.session);
    let path = format!("/sessions/{}?reason={}", escaped(key), escaped(&args.reason));
    args.on.of_mesh(Method::DELETE, &path, None)?;
    println(&if args.on.json { json!({"kicked": key}).to_string() } else { format!("{key} is gone") });
    Ok(())
}
