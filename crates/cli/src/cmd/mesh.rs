//! `tenure mesh`: which there are, and making one.

use clap::{Args as ClapArgs, Subcommand};
use hyper::Method;
use serde_json::{Value, json};
use tenure_client::proto::canonical::member_key;

use super::administer::{Administer, cell};
use crate::exit::Failure;
use crate::home::Home;
use crate::output::{print, println, table};

/// Make a mesh that lets in only those who are invited, or list the meshes of a broker.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: tenure mesh create team && tenure invite --mesh team")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a mesh; this machine's member key becomes its owner, who can invite others
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        on: Administer,
    },
    /// List meshes
    List {
        #[command(flatten)]
        on: Administer,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Create { name, on } => create(name, on),
        What::List { on } => list(on),
    }
}

fn create(name: &str, on: &Administer) -> Result<(), Failure> {
    let owner = member_key(&Home::find()?.member_key()?).to_string();
    let made = on.call(Method::POST, "/v1/admin/meshes", Some(&json!({"name": name, "owner": owner})))?;
    if on.json {
        println(&made.to_string());
        return Ok(());
    }
    println(&format!("{name}: made; this machine's key owns it"));
    eprintln!("invite others with `tenure invite --mesh {name}`");
    let all = on.call(Method::GET, "/v1/admin/meshes", None)?;
    let open = all["meshes"].as_array().into_iter().flatten().find(|mesh| mesh["open"] == true);
    if let Some(open) = open {
        eprintln!(
            "the mesh {} is open to everybody on this machine until the broker is started again",
            cell(open, "name")
        );
    }
    Ok(())
}

fn list(on: &Administer) -> Result<(), Failure> {
    let all = on.call(Method::GET, "/v1/admin/meshes", None)?;
    let meshes = all["meshes"].as_array().cloned().unwrap_or_default();
    if on.json {
        println(&json!(meshes).to_string());
        return Ok(());
    }
    let row = |mesh: &Value| {
        let open = if mesh["open"] == true { "open" } else { "members" };
        let mut row = vec![cell(mesh, "name"), open.to_owned()];
        row.extend(["members", "online", "sessions", "topics", "bans"].map(|field| cell(mesh, field)));
        row
    };
    let rows: Vec<Vec<String>> = meshes.iter().map(row).collect();
    print(&table(&["MESH", "FOR", "MEMBERS", "ONLINE", "SESSIONS", "TOPICS", "BANS"], &rows));
    Ok(())
}
