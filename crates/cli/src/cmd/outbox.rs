//! `tenure outbox`: what the daemon was given to send, and what a person does about it.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_client::Body;
use tenure_client::proto::ids::ClientMessageId;
use tenure_client::proto::text;
use tenure_daemon::utc;

use super::names;
use crate::exit::Failure;
use crate::home::Home;
use crate::local::{Local, escaped};
use crate::output::{emit_json, lines, print, println, safe, sentence, table, unread};
use crate::span;

/// Bytes of a new body that are read: more than the daemon takes.
const BODY_BYTES: u64 = 16 * 1024 * 1024;

/// See what the daemon was given to send, and do something about what cannot be sent.
///
/// A row is named by the id that `tenure send` printed, or by its number: '#17', or 17 if that is nobody's id. A row is
/// pending, inflight, done, dead (the broker will not have it, or it waited too long) or aborted (taken back, or sent
/// anew under another id).
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure outbox list --status dead
  tenure outbox show deploy-417
  tenure outbox requeue '#17' --patch-body fixed.json
  tenure outbox drop '#17' '#18'")]
pub(crate) struct Args {
    /// Print JSON: list prints one object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print rows in the order in which they were taken: tenure outbox list --status pending
    List {
        /// Only those that are pending, inflight, done, dead or aborted [default: all that are not done]
        #[arg(long, value_name = "STATUS", value_parser = ["pending", "inflight", "done", "dead", "aborted", "all"])]
        status: Option<String>,
        /// Print at most so many: --limit 10 [default: all]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
    /// Print everything about one row: tenure outbox show '#17'
    Show {
        /// The row: the sender's id, or its number as '#17'
        id: String,
    },
    /// Send a dead or pending row anew under another id; the old id is never free again: tenure outbox requeue '#17'
    ///
    /// A row that was ever sent is first looked up at the broker: if that has it, it is done, and nothing is sent.
    Requeue {
        /// The row: the sender's id, or its number as '#17'
        id: String,
        /// The new id, or auto for a fresh one
        #[arg(long, value_name = "ID", default_value = "auto", value_parser = names::message_id)]
        new_client_id: ClientMessageId,
        /// Send what this file holds instead; - reads standard input
        #[arg(long, value_name = "FILE")]
        patch_body: Option<PathBuf>,
        /// Send it although the broker cannot be asked: it may arrive twice
        #[arg(long)]
        force: bool,
    },
    /// Take dead or pending rows back for good; their ids are never free again: tenure outbox drop '#17' '#18'
    Drop {
        /// The rows: the sender's ids, or their numbers as '#17'
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    crate::block_on(async {
        let local = Local::at(&Home::find()?);
        match &args.verb {
            Verb::List { status, limit } => list(&local, status.as_deref(), *limit, args.json).await,
            Verb::Show { id } => show(&local, id, args.json).await,
            Verb::Requeue { id, new_client_id, patch_body, force } => {
                let body = patch_body.as_ref().map(read).transpose()?;
                let new_id = Some(new_client_id.as_str()).filter(|id| *id != "auto");
                requeue(&local, id, new_id, body, *force, args.json).await
            }
            Verb::Drop { ids } => discard(&local, ids, args.json).await,
        }
    })
}

/// A row as it was named: `#17` is its number; anything else the sender's id, or a number if it is no id as well.
async fn row(local: &Local, name: &str) -> Result<Value, Failure> {
    let numbered = async |number: u64| {
        let answer = local.call(Method::GET, &format!("/v1/outbox/{number}"), None).await?;
        if answer.status == StatusCode::NOT_FOUND { Ok(None) } else { answer.good().map(Some) }
    };
    let unknown =
        || Failure::Refused(format!("not_found: there is no row {}; see `tenure outbox list`", safe(name)));
    if let Some(Ok(number)) = name.strip_prefix('#').map(str::parse) {
        return numbered(number).await?.ok_or_else(unknown);
    }
    let mut found = Vec::new();
    if name.parse::<ClientMessageId>().is_ok() {
        let mut page = local.get(&format!("/v1/outbox?clientMessageId={}", escaped(name))).await?;
        found.extend(page["rows"].as_array_mut().into_iter().flat_map(std::mem::take));
    }
    if let Ok(number) = name.parse()
        && !found.iter().any(|row| row["id"] == number)
    {
        found.extend(numbered(number).await?);
    }
    match found.len() {
        0 => Err(unknown()),
        1 => Ok(found.remove(0)),
        _ => Err(ambiguous(name, &found)),
    }
}

/// Several rows go by this name, and one must be said by its number.
fn ambiguous(name: &str, found: &[Value]) -> Failure {
    let mut told = format!("{} names several rows; say which one by its number:", safe(name));
    for row in found {
        let text = |key: &str| safe(row[key].as_str().unwrap_or_default());
        let (id, mesh, to) = (text("clientMessageId"), text("mesh"), text("to"));
        told += &format!("\n  '#{}'  with the id {id}, to {to} in {mesh}", row["id"]);
    }
    Failure::Usage(told)
}

async fn list(local: &Local, status: Option<&str>, limit: Option<u64>, json: bool) -> Result<(), Failure> {
    let only = status.filter(|status| *status != "all");
    let (mut left, mut after, mut rows) = (limit.unwrap_or(u64::MAX), 0, Vec::new());
    let filter = only.map(|status| format!("&status={status}")).unwrap_or_default();
    'pages: loop {
        let page = local.get(&format!("/v1/outbox?after={after}{filter}")).await?;
        for row in page["rows"].as_array().into_iter().flatten() {
            if status.is_none() && row["status"] == "done" {
                continue;
            }
            if left == 0 {
                break 'pages;
            }
            left -= 1;
            if !json {
                rows.push(line(row));
            } else if let Err(error) = emit_json(row) {
                return unread(&error);
            }
        }
        let Some(next) = page["next"].as_u64() else { break };
        after = next;
    }
    match (json, rows.is_empty()) {
        (true, _) => {}
        (false, true) => eprintln!("there is nothing"),
        (false, false) => print(&table(&["ROW", "STATUS", "AGE", "ATTEMPTS", "TO", "ID", "ERROR"], &rows)),
    }
    Ok(())
}

fn line(row: &Value) -> Vec<String> {
    let text = |key: &str| safe(row[key].as_str().unwrap_or("-"));
    let age = span::short(span::since(row["enqueuedAt"].as_u64().unwrap_or_default()));
    let mut line = vec![row["id"].to_string(), text("status"), age, row["attempts"].to_string()];
    line.extend([text("to"), text("clientMessageId"), text("lastError")]);
    line
}

async fn show(local: &Local, id: &str, json: bool) -> Result<(), Failure> {
    let row = row(local, id).await?;
    if json {
        println(&row.to_string());
        return Ok(());
    }
    for (name, key) in [
        ("row", "id"),
        ("status", "status"),
        ("id", "clientMessageId"),
        ("to", "to"),
        ("mesh", "mesh"),
        ("session", "session"),
        ("priority", "priority"),
        ("taken", "enqueuedAt"),
        ("attempts", "attempts"),
        ("next", "nextAttemptAt"),
        ("error", "lastError"),
        ("accepted", "deliveredAt"),
        ("broker id", "brokerMessageId"),
        ("seq", "logSeq"),
        ("aborted", "abortedAt"),
        ("by", "abortedBy"),
        ("anew as", "supersededBy"),
        ("bytes", "bytes"),
    ] {
        let value = match &row[key] {
            Value::Null => continue,
            Value::Number(at) if key.ends_with("At") => utc(at.as_u64().unwrap_or_default()),
            Value::String(text) => sentence(text),
            other => other.to_string(),
        };
        println(&format!("{name:<10}{value}"));
    }
    Ok(())
}

/// What a file holds, or standard input.
fn read(path: &PathBuf) -> Result<Body, Failure> {
    use std::io::Read;
    let cannot = |error| Failure::Usage(format!("read {}: {error}", path.display()));
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(BODY_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).map_err(cannot)?.take(BODY_BYTES + 1).read_to_end(&mut bytes)
    };
    if read.map_err(cannot)? as u64 > BODY_BYTES {
        return Err(Failure::Usage(format!("{} is too large for a message", path.display())));
    }
    Ok(super::publish::body(bytes))
}

async fn requeue(
    local: &Local,
    id: &str,
    new_id: Option<&str>,
    body: Option<Body>,
    force: bool,
    json: bool,
) -> Result<(), Failure> {
    let row = row(local, id).await?;
    let mut request = json!({"force": force});
    if let Some(id) = new_id {
        request["newClientMessageId"] = json!(id);
    }
    match body {
        Some(Body::Text(text)) => request["body"] = json!(text),
        Some(Body::Bytes(bytes)) => request["bodyB64"] = json!(text::b64(&bytes)),
        None => {}
    }
    let done = local.post(&format!("/v1/outbox/{}/requeue", row["id"]), &request).await?;
    if json {
        println(&done.to_string());
    } else if done["status"] == "done" {
        eprintln!("the broker has had it all along: it is done, and not sent again");
        println(done["brokerMessageId"].as_str().unwrap_or_default());
    } else {
        eprintln!("row {} is sent anew as row {}", row["id"], done["id"]);
        println(done["clientMessageId"].as_str().unwrap_or_default());
    }
    Ok(())
}

async fn discard(local: &Local, ids: &[String], json: bool) -> Result<(), Failure> {
    let mut dropped = Vec::new();
    let mut outcome = Ok(());
    for id in ids {
        let taken = async {
            let row = row(local, id).await?;
            local.call(Method::DELETE, &format!("/v1/outbox/{}", row["id"]), None).await?.good()?;
            Ok(row["id"].clone())
        };
        match taken.await {
            Ok(row) => dropped.push(row),
            Err(failure) => {
                let failure: Failure = failure;
                eprintln!("{}: {}", safe(id), lines(&failure.to_string()));
                outcome = Err(failure);
            }
        }
    }
    if json {
        println(&json!({"dropped": dropped}).to_string());
    } else {
        eprintln!("{} of {} are taken back for good", dropped.len(), ids.len());
    }
    outcome
}
