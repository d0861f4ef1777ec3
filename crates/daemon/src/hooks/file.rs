//! Which programs may be hooks: those that nobody but this user, or root, can have put there.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why a file is not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0} is not a file")]
    NotAFile(String),
    #[error("{0} is not executable: chmod u+x it, or remove it")]
    NotExecutable(String),
    #[error("{0} belongs to user {1}, who is not you: chown it, or remove it")]
    Foreign(String, u32),
    #[error("{0} can be written by others: chmod go-w it")]
    Shared(String),
    #[error("{0} cannot be looked at: {1}")]
    Unseen(String, String),
}

/// What is known of a file.
#[derive(Clone, Copy, Debug)]
struct Facts {
    owner: u32,
    mode: u32,
}

/// Whether there is a hook called `name` in `dir` that may be run.
pub(super) fn check(dir: &Path, name: &str) -> Result<bool, Refusal> {
    let us = rustix::process::geteuid().as_raw();
    let path = dir.join(name);
    let unseen = |name: &str, error: std::io::Error| Refusal::Unseen(name.to_owned(), error.to_string());
    let found = match std::fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        found => found.map_err(|error| unseen(name, error))?,
    };
    if !found.is_file() {
        return Err(Refusal::NotAFile(name.to_owned()));
    }
    let around = std::fs::metadata(dir).map_err(|error| unseen("the directory of hooks", error))?;
    // Who can write there can put another file in its place.
    trust("the directory of hooks", Facts { owner: around.uid(), mode: around.mode() }, us)?;
    let facts = Facts { owner: found.uid(), mode: found.mode() };
    trust(name, facts, us)?;
    if facts.mode & 0o111 == 0 {
        return Err(Refusal::NotExecutable(name.to_owned()));
    }
    Ok(true)
}

fn trust(name: &str, facts: Facts, us: u32) -> Result<(), Refusal> {
    if facts.owner != us && facts.owner != 0 {
        return Err(Refusal::Foreign(name.to_owned(), facts.owner));
    }
    if facts.mode & 0o022 != 0 {
        return Err(Refusal::Shared(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_what_its_owner_alone_can_change_is_trusted() {
        let trusted = |owner, mode| trust("x", Facts { owner, mode }, 1_000);
        assert_eq!(trusted(1_000, 0o100_755), Ok(()));
        assert_eq!(trusted(0, 0o100_755), Ok(()));
        assert_eq!(trusted(1_001, 0o100_755), Err(Refusal::Foreign("x".into(), 1_001)));
        assert_eq!(trusted(1_000, 0o100_775), Err(Refusal::Shared("x".into())));
        assert_eq!(trusted(1_000, 0o100_757), Err(Refusal::Shared("x".into())));
    }

    #[test]
    fn a_hook_is_a_file_that_can_be_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("on-dm");
        assert_eq!(check(dir.path(), "on-dm"), Ok(false));
        fs::create_dir(&path).unwrap();
        assert_eq!(check(dir.path(), "on-dm"), Err(Refusal::NotAFile("on-dm".into())));
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(check(dir.path(), "on-dm"), Err(Refusal::NotExecutable("on-dm".into())));
        fs::set_permissions(&path, Permissions::from_mode(0o702)).unwrap();
        assert_eq!(check(dir.path(), "on-dm"), Err(Refusal::Shared("on-dm".into())));
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        assert_eq!(check(dir.path(), "on-dm"), Ok(true));
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(check(dir.path(), "on-dm").unwrap_err().to_string().contains("the directory of hooks"));
    }
}
