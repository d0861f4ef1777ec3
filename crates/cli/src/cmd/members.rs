//! `tenure members`: who may come into a mesh.

use clap::Args as ClapArgs;
use hyper::Method;
use serde_json::{Value, json};

use super::administer::{Administer, cell};
use crate::exit::Failure;
use crate::output::{print, println, table};

/// List who may come into a mesh, add or change somebody, or remove them.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure members --mesh team
  tenure members --mesh team --put KEY --name ann --caps send,read
  tenure members --mesh team --remove KEY")]
pub(crate) struct Args {
    #[command(flatten)]
    on: Administer,
    /// Let this key in, or change what it is
    #[arg(long, value_name = "KEY", conflicts_with = "remove")]
    put: Option<String>,
    /// Let this key in no longer; its sessions end. Whoever has a good invite can come back: ban the key, or revoke the
    /// invite
    #[arg(long, value_name = "KEY")]
    remove: Option<String>,
    /// member or operator
    #[arg(long, value_name = "ROLE", requires = "put", value_parser = ["member", "operator"])]
    role: Option<String>,
    /// What it may do, by comma: send, read, run, serve, admin; `all` is whatever its role may
    #[arg(long, value_name = "CAPS", requires = "put")]
    caps: Option<String>,
    /// What to call it
    #[arg(long, value_name = "TEXT", requires = "put")]
    name: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let on = &args.on;
    if let Some(key) = &args.remove {
        on.of_mesh(Method::DELETE, &format!("/members/{}", crate::local::escaped(key)), None)?;
        println(&if on.json {
            json!({"removed": key}).to_string()
        } else {
            format!(
                "{key} is a member no longer; with an invite that is still good it can come back: ban it (`tenure ban \
                 member:KEY`), or revoke the invite"
            )
        });
        return Ok(());
    }
    if let Some(key) = &args.put {
        let mut change = json!({});
        if let Some(role) = &args.role {
            change["role"] = json!(role);
        }
        match args.caps.as_deref() {
            None => {}
            Some("all") => change["caps"] = Value::Null,
            Some(caps) => change["caps"] = json!(caps.split(',').map(str::trim).collect::<Vec<_>>()),
        }
        if let Some(name) = &args.name {
            change["name"] = json!(name);
        }
        let path = format!("/members/{}", crate::local::escaped(key));
        let member = on.of_mesh(Method::PUT, &path, Some(&change))?;
        show(&[member], on.json);
        return Ok(());
    }
    let members = on.pages("members", "members", "after")?;
    show(&members, on.json);
    Ok(())
}

fn show(members: &[Value], json: bool) {
    if json {
        return println(&json!(members).to_string());
    }
    let row = |member: &Value| ["member", "role", "caps", "name"].map(|field| cell(member, field)).to_vec();
    let rows: Vec<Vec<String>> = members.iter().map(row).collect();
    print(&table(&["MEMBER", "ROLE", "CAPS", "NAME"], &rows));
}
