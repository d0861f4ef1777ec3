//! `tenure keys`: which keys this machine has.

use clap::Args as ClapArgs;
use serde_json::json;
use tenure_client::proto::canonical::{member_key, session_key};

use crate::exit::Failure;
use crate::home::{Home, key_at};
use crate::output::{print, println, safe, table};

/// Show the public keys of this machine: the member's, and those of named sessions. Keys are made on first use
/// and kept under TENURE_HOME, readable by you only.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let home = Home::find()?;
    let member = member_key(&home.member_key()?).to_string();
    let mut sessions = Vec::new();
    for (mesh, name, path) in home.sessions() {
        sessions.push((mesh, name, session_key(&key_at(&path)?).to_string()));
    }
    if args.json {
        let sessions: Vec<_> = sessions
            .iter()
            .map(|(mesh, name, key)| json!({"mesh": mesh, "name": name, "session": key}))
            .collect();
        let file = home.member_path().display().to_string();
        println(&json!({"member": member, "file": file, "sessions": sessions}).to_string());
        return Ok(());
    }
    let mut rows = vec![vec!["member".to_owned(), String::new(), String::new(), member]];
    for (mesh, name, key) in sessions {
        rows.push(vec!["session".to_owned(), mesh, safe(&name), key]);
    }
    print(&table(&["KIND", "MESH", "NAME", "PUBLIC KEY"], &rows));
    eprintln!("keys are kept in {}", home.keys_dir().display());
    Ok(())
}
