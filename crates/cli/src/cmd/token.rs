//! `tenure token`: bearer tokens, which let in whoever brings one.

use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::administer::{Administer, cell};
use crate::exit::Failure;
use crate::local::escaped;
use crate::output::{print, println, table};
use crate::span;

/// Make, list or revoke bearer tokens: whoever brings one is let in, with any key.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure token create --mesh team --name ci --caps send,read --expires 30d
  TENURE_TOKEN=… tenure peers --mesh team
  tenure token list --mesh team
  tenure token revoke ID --mesh team")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a token and print it, once and never again; give it to a command as TENURE_TOKEN
    Create {
        /// What to call it
        #[arg(long, value_name = "TEXT", default_value = "")]
        name: String,
        /// What whoever brings it may do, by comma: send, read, run, serve [default: all of these]
        #[arg(long, value_name = "CAPS", value_delimiter = ',')]
        caps: Option<Vec<String>>,
        /// How long it is good [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = span::parse)]
        expires: Option<Duration>,
        #[command(flatten)]
        on: Administer,
    },
    /// List tokens, without their secrets
    List {
        #[command(flatten)]
        on: Administer,
    },
    /// Let nobody in by a token any more; the sessions that came by it end
    Revoke {
        /// Its id, as `tenure token list` shows it
        id: String,
        #[command(flatten)]
        on: Administer,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Create { name, caps, expires, on } => create(name, caps.as_deref(), *expires, on),
        What::List { on } => list(on),
        What::Revoke { id, on } => revoke(id, on),
    }
}

fn create(
    name: &str,
    caps: Option<&[String]>,
    expires: Option<Duration>,
    on: &Administer,
) -> Result<(), Failure> {
    let mut wanted = json!({"name": name});
    if let Some(caps) = caps {
        wanted["caps"] = json!(caps);
    }
    if let Some(expires) = expires {
        wanted["expiresInMs"] = json!(u64::try_from(expires.as_millis()).unwrap_or(u64::MAX));
    }
    let made = on.of_mesh(Method::POST, "/tokens", Some(&wanted))?;
    if on.json {
        println(&made.to_string());
        return Ok(());
    }
    println(&cell(&made, "token"));
    eprintln!(
        "token {}: it is shown this once; bring it as TENURE_TOKEN, and revoke it with `tenure token revoke {0}`",
        cell(&made, "id")
    );
    Ok(())
}

fn list(on: &Administer) -> Result<(), Failure> {
    let tokens = on.pages("tokens", "tokens", "after")?;
    if on.json {
        println(&json!(tokens).to_string());
        return Ok(());
    }
    let row = |token: &Value| {
        let mut row = ["id", "name", "caps"].map(|field| cell(token, field)).to_vec();
        row.push(token["expiresAt"].as_u64().map_or_else(|| "never".to_owned(), span::until));
        row
    };
    let rows: Vec<Vec<String>> = tokens.iter().map(row).collect();
    print(&table(&["TOKEN", "NAME", "CAPS", "ENDS"], &rows));
    Ok(())
}

fn revoke(id: &str, on: &Administer) -> Result<(), Failure> {
    on.of_mesh(Method::DELETE, &format!("/tokens/{}", escaped(id)), None)?;
    println(&if on.json { json!({"revoked": id}).to_string() } else { format!("token {id} is revoked") });
    Ok(())
}
