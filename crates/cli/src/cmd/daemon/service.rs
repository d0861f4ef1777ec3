//! `tenure daemon install-service` and `uninstall`: start the daemon with every login.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args as ClapArgs, ValueEnum};
use tenure_daemon::{HomeError, holder};

use super::unit::{self, LABEL, Service, UNIT};
use crate::exit::Failure;
use crate::home::Home;
use crate::output::{print, println, sentence};

/// Variables that a service is given as they are now.
const VARIABLES: [&str; 9] = [
    "TENURE_HOME",
    "TENURE_BROKER",
    "TENURE_MESH",
    "TENURE_CA",
    "TENURE_DAEMON_CONFIG",
    "TENURE_LOG",
    "TENURE_LOG_FORMAT",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
];

/// Have the system start the daemon with every login: a systemd user unit on Linux, a launchd agent on macOS.
///
/// The file is written for this user, enabled and started. What TENURE_* and XDG_* variables say now is written into it.
/// The path of the file is printed.
#[derive(Debug, ClapArgs)]
pub(super) struct Install {
    /// Print the file, and install nothing
    #[arg(long)]
    print: bool,
    /// Write the file, and start nothing
    #[arg(long, conflicts_with = "print")]
    no_start: bool,
    /// For which service manager [default: that of this system]
    #[arg(long, value_enum)]
    manager: Option<Manager>,
}

/// Have the system start the daemon no more: end it, and remove the file. Messages and keys stay.
#[derive(Debug, ClapArgs)]
pub(super) struct Uninstall {
    /// Of which service manager [default: that of this system]
    #[arg(long, value_enum)]
    manager: Option<Manager>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Manager {
    Systemd,
    Launchd,
}

impl Manager {
    fn here() -> Manager {
        if cfg!(target_os = "macos") { Manager::Launchd } else { Manager::Systemd }
    }

    /// Where this user's file goes.
    fn path(self) -> Result<PathBuf, Failure> {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let nowhere = || Failure::Usage("set HOME: there is nowhere to put the file".to_owned());
        Ok(match self {
            Manager::Systemd => {
                let config = var("XDG_CONFIG_HOME").or_else(|| var("HOME").map(|home| home.join(".config")));
                config.ok_or_else(nowhere)?.join("systemd/user").join(UNIT)
            }
            Manager::Launchd => {
                let home = var("HOME").ok_or_else(nowhere)?;
                home.join("Library/LaunchAgents").join(format!("{LABEL}.plist"))
            }
        })
    }

    /// What makes the manager start it, and with every login.
    fn start(self, path: &Path) -> Vec<Vec<String>> {
        match self {
            Manager::Systemd => vec![
                words(&["systemctl", "--user", "daemon-reload"]),
                words(&["systemctl", "--user", "enable", "--now", UNIT]),
            ],
            Manager::Launchd => vec![words(&["launchctl", "load", "-w", &path.display().to_string()])],
        }
    }

    /// What makes it end it, and start it no more.
    fn stop(self, path: &Path) -> Vec<Vec<String>> {
        match self {
            Manager::Systemd => vec![words(&["systemctl", "--user", "disable", "--now", UNIT])],
            Manager::Launchd => vec![words(&["launchctl", "unload", "-w", &path.display().to_string()])],
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub(super) fn install(args: &Install) -> Result<(), Failure> {
    let failed = |what: &str, error: std::io::Error| Failure::Failed(format!("{what}: {error}"));
    let manager = args.manager.unwrap_or_else(Manager::here);
    let program = std::env::current_exe().map_err(|error| failed("find this program", error))?;
    let variables = VARIABLES.iter().filter_map(|name| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some(((*name).to_owned(), absolute(name, value)))
    });
    let variables: Vec<(String, String)> = variables.collect();
    let service = Service { program: &program, variables: &variables };
    let text = match manager {
        Manager::Systemd => unit::systemd(&service),
        Manager::Launchd => unit::launchd(&service),
    };
    if args.print {
        print(&text);
        return Ok(());
    }
    let home = Home::find()?;
    if let (false, Ok(Some(holder))) = (args.no_start, holder(home.path())) {
        return Err(Failure::Failed(HomeError::Held(holder).to_string()));
    }
    let path = manager.path()?;
    let write = || {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let aside = path.with_extension("new");
        std::fs::write(&aside, &text)?;
        std::fs::rename(&aside, &path)
    };
    write().map_err(|error| failed(&format!("write {}", path.display()), error))?;
    println(&path.display().to_string());
    if args.no_start {
        return Ok(());
    }
    manager.start(&path).iter().try_for_each(|words| call(words))?;
    eprintln!("the daemon is started, and will be with every login");
    Ok(())
}

/// Paths that a service is given do not depend on where somebody stood.
fn absolute(name: &str, value: String) -> String {
    let is_path = !["TENURE_BROKER", "TENURE_MESH", "TENURE_LOG", "TENURE_LOG_FORMAT"].contains(&name);
    match std::path::absolute(&value) {
        Ok(path) if is_path => path.display().to_string(),
        _ => value,
    }
}

pub(super) fn uninstall(args: &Uninstall) -> Result<(), Failure> {
    let manager = args.manager.unwrap_or_else(Manager::here);
    let path = manager.path()?;
    if !path.exists() {
        eprintln!("nothing is installed at {}", path.display());
        return Ok(());
    }
    // A manager that cannot be asked runs nothing, and must not keep the file here.
    if let Some(failure) = manager.stop(&path).iter().find_map(|words| call(words).err()) {
        eprintln!("warning: {failure}");
    }
    std::fs::remove_file(&path)
        .map_err(|error| Failure::Failed(format!("remove {}: {error}", path.display())))?;
    eprintln!("removed {}", path.display());
    Ok(())
}

/// Runs a command of the manager's.
fn call(words: &[String]) -> Result<(), Failure> {
    let line = words.join(" ");
    let Some((program, args)) = words.split_first() else { return Ok(()) };
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|error| Failure::Failed(format!("run `{line}`: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::Failed(format!("`{line}` failed: {}", sentence(&said))))
}
