//! `tenure invite`: a link that lets somebody in.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args as ClapArgs;
use hyper::Method;
use serde_json::{Value, json};
use tenure_client::proto::canonical::member_key;
use tenure_client::proto::invite::{Invite, InviteLink, Role};
use tenure_client::proto::limits::{INVITE_AHEAD_MS, INVITE_USES_MAX};
use tenure_client::proto::name::Cap;
use tenure_client::proto::number::U53;
use tenure_client::proto::{WireError, text};

use super::administer::{Administer, cell};
use crate::exit::Failure;
use crate::home::Home;
use crate::local::escaped;
use crate::output::{print, println, table};
use crate::span;

/// Print a link that lets somebody into a mesh.
///
/// It is signed with this machine's member key, which must be an operator's of the mesh; nobody need be asked. Whoever has
/// the link can use it: send it like a password. `--list` and `--revoke` are for whoever runs the broker.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure invite --mesh team
  tenure invite --mesh team --uses 5 --expires 1h --caps send,read
  tenure invite --mesh team --list
  tenure invite --mesh team --revoke ID")]
pub(crate) struct Args {
    #[command(flatten)]
    on: Administer,
    /// List the invites that somebody has used, or that were revoked
    #[arg(long, conflicts_with_all = ["revoke", "uses", "expires", "operator", "caps"])]
    list: bool,
    /// Let nobody in by this invite any more, also before anybody brought it; whoever came by it stays
    #[arg(long, value_name = "ID", conflicts_with_all = ["uses", "expires", "operator", "caps"])]
    revoke: Option<String>,
    /// How many keys it lets in
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(INVITE_USES_MAX)))]
    uses: u32,
    /// How long it is good
    #[arg(long, value_name = "TIME", value_parser = span::parse, default_value = "24h")]
    expires: Duration,
    /// Make operators of them, who can invite others
    #[arg(long)]
    operator: bool,
    /// What they may do, by comma: send, read, run, serve [default: all of these]
    #[arg(long, value_name = "CAPS", value_delimiter = ',')]
    caps: Option<Vec<String>>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.revoke {
        Some(id) => revoke(id, &args.on),
        None if args.list => list(&args.on),
        None => issue(args),
    }
}

fn list(on: &Administer) -> Result<(), Failure> {
    let invites = on.pages("invites", "invites", "after")?;
    if on.json {
        println(&json!(invites).to_string());
        return Ok(());
    }
    let row = |invite: &Value| {
        let used = format!("{}/{}", cell(invite, "used"), cell(invite, "uses"));
        let state = if invite["revoked"] == true { "revoked" } else { "good" };
        let ends = invite["expiresAt"].as_u64().map_or_else(String::new, span::until);
        vec![cell(invite, "id"), used, state.to_owned(), ends, cell(invite, "by")]
    };
    let rows: Vec<Vec<String>> = invites.iter().map(row).collect();
    print(&table(&["INVITE", "USED", "STATE", "ENDS", "BY"], &rows));
    Ok(())
}

fn revoke(id: &str, on: &Administer) -> Result<(), Failure> {
    on.of_mesh(Method::DELETE, &format!("/invites/{}", escaped(id)), None)?;
    println(&if on.json { json!({"revoked": id}).to_string() } else { format!("invite {id} is revoked") });
    Ok(())
}

fn issue(args: &Args) -> Result<(), Failure> {
    let at = &args.on.at;
    let usage = |error: WireError| Failure::Usage(error.message);
    let key = Home::find()?.member_key()?;
    let ahead_ms = u64::try_from(args.expires.as_millis()).unwrap_or(u64::MAX);
    if !(1..=INVITE_AHEAD_MS).contains(&ahead_ms) {
        return Err(Failure::Usage("an invite is good for some time, and for a year at most".to_owned()));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let mut random = [0u8; 12];
    getrandom::fill(&mut random).map_err(|error| Failure::Failed(format!("draw randomness: {error}")))?;
    let read = |caps: &Vec<String>| caps.iter().map(|cap| cap.parse::<Cap>()).collect::<Result<Vec<_>, _>>();
    let caps: Option<Vec<Cap>> = args.caps.as_ref().map(read).transpose().map_err(usage)?;
    let known = ["send", "read", "run", "serve", "admin"];
    if let Some(cap) = caps.iter().flatten().find(|cap| !known.contains(&cap.as_str())) {
        return Err(Failure::Usage(format!("there is no cap {cap}; there are {}", known.join(", "))));
    }
    let invite = Invite {
        mesh: at.mesh().parse().map_err(usage)?,
        id: text::hex(&random).parse().map_err(|_| Failure::Failed("make an id".to_owned()))?,
        by: member_key(&key),
        role: if args.operator { Role::Operator } else { Role::Member },
        caps,
        uses: args.uses,
        exp: U53::saturating(now.saturating_add(ahead_ms)),
    };
    let link = InviteLink::write(at.broker(), &invite.issue(&key));
    if args.on.json {
        let shown = json!({
            "link": link, "id": invite.id, "mesh": invite.mesh, "uses": invite.uses,
            "expiresAt": invite.exp, "role": invite.role,
        });
        println(&shown.to_string());
        return Ok(());
    }
    println(&link);
    let times = if args.uses == 1 { "once".to_owned() } else { format!("{} times", args.uses) };
    eprintln!(
        "invite {}: good {times}, for {}; join with `tenure join LINK`",
        invite.id,
        span::exact(ahead_ms)
    );
    Ok(())
}
