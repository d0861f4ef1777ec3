//! Debian packages that a chore needs, installed by name; what is installed is said.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use crate::run;

/// Where Debian keeps the lists of packages.
const LISTS: &str = "/var/lib/apt/lists";

/// Installs `package`; none of its services is started. Lists of packages that are missing, as in a fresh image, or that
/// name what is gone are brought up to date first, once in a run.
pub(crate) fn install(package: &str) -> Result<()> {
    static UPDATED: AtomicBool = AtomicBool::new(false);
    if has_lists() {
        let tried = attempt(package);
        if tried.is_ok() || UPDATED.load(Ordering::Relaxed) {
            return tried;
        }
    }
    eprintln!("apt-get update");
    run::succeed(Command::new("apt-get").args(["update", "--quiet"]))?;
    UPDATED.store(true, Ordering::Relaxed);
    attempt(package)
}

fn has_lists() -> bool {
    let mut files = fs::read_dir(LISTS).into_iter().flatten().flatten();
    files.any(|file| file.file_name().to_string_lossy().contains("_Packages"))
}

fn attempt(package: &str) -> Result<()> {
    eprintln!("apt-get install {package}");
    let mut command = Command::new("apt-get");
    command.args(["install", "--yes", "--quiet", "--no-install-recommends", package]);
    // Rescue mode: a package that is installed starts nothing, for chores start servers of their own.
    command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    run::succeed(&mut command)
}
