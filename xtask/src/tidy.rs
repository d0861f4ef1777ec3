//! `cargo xtask tidy`: the rules of the house that the compiler does not check.
//!
//! Every broken rule is one line on stderr, with file and line where there is one; any of them fails the
//! command. The sizes of files and functions are printed on stdout and fail nothing: they are a target to look
//! at, not a gate.
//!
//! The rules: `proto` and the rules (`kit`, `mesh`, `link`, `outbox`) reach no runtime, clock, socket or randomness ([`graph`], [`words`]); crates
//! depend on each other in one direction only ([`graph`]); every package is from the registry or the workspace,
//! under a licence we allow ([`licence`]); nothing unfinished and no path of somebody's machine is committed
//! ([`words`], [`files`]); every library and every folder opens with its docs ([`files`], [`docs`]); paths in documents
//! exist, and each `select!` says why it is safe ([`docs`]).

mod docs;
mod files;
mod graph;
mod lex;
mod licence;
mod sizes;
mod words;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::run;

/// Runs the checks as a command of their own.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    if let Some(arg) = args.first() {
        bail!("`tidy` takes no arguments, got `{arg}`");
    }
    check()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs every check, prints what they found, and fails if a rule is broken.
pub(crate) fn check() -> Result<()> {
    let root = run::root();
    let metadata = run::metadata(&[])?;
    let sources = files::rust_sources(&root)?;

    let mut problems = graph::check_purity(&metadata);
    problems.extend(graph::check_direction(&metadata));
    problems.extend(licence::check(&metadata));
    problems.extend(words::check_pure_rooms(&sources));
    problems.extend(words::check_leftovers(&sources));
    problems.extend(files::check_crate_docs(&metadata)?);
    problems.extend(files::check_machine_paths(&root)?);
    problems.extend(docs::check_paths(&root)?);
    problems.extend(docs::check_heads(&sources));
    problems.extend(docs::check_selects(&sources));

    print!("{}", sizes::report(&sources));
    for problem in &problems {
        eprintln!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
        1 => bail!("tidy found 1 problem"),
        count => bail!("tidy found {count} problems"),
    }
}
