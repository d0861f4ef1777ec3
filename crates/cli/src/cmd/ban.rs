//! `tenure ban` and `tenure unban`: who is kept out.

use clap::Args as ClapArgs;
use hyper::Method;
use serde_json::{Value, json};

use super::administer::{Administer, cell};
use crate::exit::Failure;
use crate::local::escaped;
use crate::output::{print, println, table};

/// Keep a member, a session or an address out from this moment on, or list who is.
///
/// Leases end, sockets close, hellos are refused, until `tenure unban`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure ban session:HEX --reason spam
  tenure ban member:HEX
  tenure ban address:10.0.0.0/8
  tenure ban")]
pub(crate) struct Args {
    /// member:HEX, session:HEX, or address:10.0.0.7 or a network; absent lists bans
    subject: Option<String>,
    /// Why, for others to read
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    on: Administer,
}

/// Keep somebody out no longer.
#[derive(Debug, ClapArgs)]
pub(crate) struct UnbanArgs {
    /// As it was banned: member:HEX, session:HEX or address:NETWORK
    subject: String,
    #[command(flatten)]
    on: Administer,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let on = &args.on;
    let Some(subject) = &args.subject else { return list(on) };
    let wanted = json!({"subject": subject, "reason": args.reason});
    let ban = on.of_mesh(Method::POST, "/bans", Some(&wanted))?;
    println(&if on.json { ban.to_string() } else { format!("{} is banned", cell(&ban, "subject")) });
    Ok(())
}

fn list(on: &Administer) -> Result<(), Failure> {
    let bans = on.pages("bans", "bans", "after")?;
    if on.json {
        println(&json!(bans).to_string());
        return Ok(());
    }
    let row = |ban: &Value| vec![cell(ban, "subject"), cell(ban, "reason")];
    print(&table(&["BANNED", "WHY"], &bans.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

pub(crate) fn lift(args: &UnbanArgs) -> Result<(), Failure> {
    let (on, subject) = (&args.on, &args.subject);
    on.of_mesh(Method::DELETE, &format!("/bans?subject={}", escaped(subject)), None)?;
    println(&if on.json {
        json!({"unbanned": subject}).to_string()
    } else {
        format!("{subject} is not banned")
    });
    Ok(())
}
