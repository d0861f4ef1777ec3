//! `tenure invite`: a link that lets somebody in.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args as ClapArgs;
use serde_json::json;
use tenure_client::proto::canonical::member_key;
use tenure_client::proto::invite::{Invite, InviteLink, Role};
use tenure_client::proto::limits::{INVITE_AHEAD_MS, INVITE_USES_MAX};
use tenure_client::proto::name::Cap;
use tenure_client::proto::number::U53;
use tenure_client::proto::{WireError, text};

use super::Where;
use crate::exit::Failure;
use crate::home::Home;
use crate::output::println;
use crate::span;

/// Print a link that lets somebody into a mesh.
///
/// It is signed with this machine's member key, which must be an operator's of the mesh; nobody need be asked. Whoever has
/// the link can use it: send it like a password. Revoke it in the admin API by its id.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure invite --mesh team
  tenure invite --mesh team --uses 5 --expires 1h --caps send,read")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
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
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let usage = |error: WireError| Failure::Usage(error.message);
    let key = Home::find()?.member_key()?;
    let ahead_ms = u64::try_from(args.expires.as_millis()).unwrap_or(u64::MAX);
    if !(1..=INVITE_AHEAD_MS).contains(&ahead_ms) {
        return Err(Failure::Usage("an invite is good for a year at most".to_owned()));
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
        mesh: args.at.mesh().parse().map_err(usage)?,
        id: text::hex(&random).parse().map_err(|_| Failure::Failed("make an id".to_owned()))?,
        by: member_key(&key),
        role: if args.operator { Role::Operator } else { Role::Member },
        caps,
        uses: args.uses,
        exp: U53::saturating(now.saturating_add(ahead_ms)),
    };
    let link = InviteLink::write(args.at.broker(), &invite.issue(&key));
    if args.json {
        let shown = json!({
            "link": link, "id": invite.id, "mesh": invite.mesh, "uses": invite.uses,
            "expiresAt": invite.exp, "role": invite.role,
        });
        println(&shown.to_string());
        return Ok(());
    }
    println(&link);
    let times = if args.uses == 1 { "once".to_owned() } else { format!("{} times", args.uses) };
    eprintln!("good {times}, for {}; join with `tenure join LINK`", span::exact(ahead_ms));
    Ok(())
}
