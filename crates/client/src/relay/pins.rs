//! Whose a name is: the member that had it when it was first used, kept in a file as `ssh` keeps the keys of hosts.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use tenure_proto::ids::MemberKey;
use tenure_proto::name::{MeshName, ServiceName};

/// Bytes of the file: some twenty thousand names.
const FILE_BYTES: u64 = 4 * 1024 * 1024;

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// It was this member's before.
    Known,
    /// It is this member's from here on.
    First,
}

/// Why a name is not believed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// It was somebody else's before.
    #[error(
        "{name} was offered by member {was} before, and by {is} now; if that is right, remove its line from {file}"
    )]
    Changed {
        /// The service.
        name: ServiceName,
        /// Whose it was.
        was: MemberKey,
        /// Who offers it now.
        is: MemberKey,
        /// Where that is written.
        file: PathBuf,
    },
    /// The caller expects somebody else.
    #[error("{name} is offered by member {is}, not by {expected} as expected")]
    Unexpected {
        /// The service.
        name: ServiceName,
        /// Whom the caller expects.
        expected: MemberKey,
        /// Who offers it.
        is: MemberKey,
    },
    /// The file cannot be read or written.
    #[error("keep whose services are in {0}: {1}")]
    File(PathBuf, #[source] std::io::Error),
}

/// The members that names belong to, in a file: `MESH NAME MEMBER`, one a line.
#[derive(Clone, Debug)]
pub struct Pins(PathBuf);

impl Pins {
    /// Those in `file`, which need not exist.
    pub fn new(file: impl Into<PathBuf>) -> Pins {
        Pins(file.into())
    }

    /// Checks that `name` is `member`'s, or nobody's yet. Keeps nothing: who says whose it is may not have proven it.
    pub fn look(&self, mesh: &MeshName, name: &ServiceName, member: MemberKey) -> Result<Pinned, PinError> {
        match self.find(mesh, name).map_err(|error| PinError::File(self.0.clone(), error))? {
            Some(was) if was == member => Ok(Pinned::Known),
            Some(was) => Err(PinError::Changed { name: name.clone(), was, is: member, file: self.0.clone() }),
            None => Ok(Pinned::First),
        }
    }

    /// Checks that `name` is `member`'s, or makes it so if it is nobody's yet.
    pub fn check(&self, mesh: &MeshName, name: &ServiceName, member: MemberKey) -> Result<Pinned, PinError> {
        let pinned = self.look(mesh, name, member)?;
        if pinned == Pinned::First {
            let line = format!("{mesh} {name} {member}\n");
            self.append(&line).map_err(|error| PinError::File(self.0.clone(), error))?;
        }
        Ok(pinned)
    }

    /// The first line of a name holds: what is appended behind it later, by whomever, changes nothing.
    fn find(&self, mesh: &MeshName, name: &ServiceName) -> std::io::Result<Option<MemberKey>> {
        let text = match std::fs::metadata(&self.0) {
            Ok(meta) if meta.len() > FILE_BYTES => {
                return Err(std::io::Error::new(
                    ErrorKind::FileTooLarge,
                    "the file is too long; remove old lines",
                ));
            }
            Ok(_) => std::fs::read_to_string(&self.0)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        for line in text.lines() {
            let mut words = line.split(' ');
            if words.next() == Some(mesh.as_str()) && words.next() == Some(name.as_str()) {
                let member = words.next().and_then(|word| word.parse().ok());
                let damaged =
                    || std::io::Error::new(ErrorKind::InvalidData, format!("the line of {name} is damaged"));
                return member.map(Some).ok_or_else(damaged);
            }
        }
        Ok(None)
    }

    fn append(&self, line: &str) -> std::io::Result<()> {
        if let Some(directory) = self.0.parent().filter(|path| *path != Path::new("")) {
            std::fs::create_dir_all(directory)?;
        }
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&self.0)?;
        file.write_all(line.as_bytes())?;
        file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_with_whom_it_was_first_used() {
        let directory = tempfile::tempdir().unwrap();
        let pins = Pins::new(directory.path().join("below/known-services"));
        let (mesh, other): (MeshName, MeshName) = ("m".parse().unwrap(), "n".parse().unwrap());
        let (web, db): (ServiceName, ServiceName) = ("web".parse().unwrap(), "db".parse().unwrap());
        let (one, two) = (MemberKey([1; 32]), MemberKey([2; 32]));
        assert_eq!(pins.check(&mesh, &web, one).unwrap(), Pinned::First);
        assert_eq!(pins.check(&mesh, &web, one).unwrap(), Pinned::Known);
        assert!(matches!(pins.check(&mesh, &web, two), Err(PinError::Changed { was, .. }) if was == one));
        assert_eq!(pins.check(&mesh, &db, two).unwrap(), Pinned::First);
        assert_eq!(pins.check(&other, &web, two).unwrap(), Pinned::First);
        pins.append(&format!("m web {two}\n")).unwrap();
        assert!(pins.check(&mesh, &web, two).is_err(), "a later line does not count");
    }

    #[test]
    fn a_damaged_line_is_no_permission() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("known-services");
        std::fs::write(&file, "m web 12ab\n").unwrap();
        let outcome =
            Pins::new(&file).check(&"m".parse().unwrap(), &"web".parse().unwrap(), MemberKey([1; 32]));
        assert!(matches!(outcome, Err(PinError::File(_, error)) if error.to_string().contains("damaged")));
    }
}
