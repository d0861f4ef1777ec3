//! Telling the service manager how a process is: systemd's `Type=notify`, one datagram at a time.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable that says where the manager listens.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The way to the service manager, if one wants to know.
#[derive(Debug)]
pub(crate) struct Manager {
    at: Option<SocketAddr>,
}

impl Manager {
    /// The manager that started this process, if it wants to know.
    pub(crate) fn of_this_process() -> Manager {
        let at = std::env::var_os(SOCKET).filter(|path| !path.is_empty());
        Manager { at: at.and_then(|path| address(&path).ok()) }
    }

    /// Says that the process is ready.
    pub(crate) fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Says that the process is about to end by its own will, and how long that may take at most, whatever the manager has
    /// been told before.
    pub(crate) fn stopping(&self, status: &str, within: Duration) {
        let (status, micros) = (one_line(status), within.as_micros());
        self.say(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS={status}"));
    }

    /// Nothing depends on it here: a manager that does not listen is its own affair.
    fn say(&self, facts: &str) {
        let Some(at) = &self.at else { return };
        let said = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to_addr(facts.as_bytes(), at)
        });
        if let Err(error) = said {
            tracing::warn!(event = "notify_failed", %error, "the service manager was not told");
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// A path, or with `@` in front a name in the space that only Linux has.
fn address(path: &OsString) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).strip_prefix(b"@") {
        return <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name);
    }
    SocketAddr::from_pathname(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_one_fact_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let manager = Manager { at: Some(address(&path.into_os_string()).unwrap()) };
        manager.ready("listening\nFDSTORE=1");
        manager.stopping("draining", Duration::from_millis(1_500));
        let mut heard = [0; 256];
        let mut next = || {
            let read = listener.recv(&mut heard).unwrap();
            String::from_utf8_lossy(&heard[..read]).into_owned()
        };
        assert_eq!(next(), "READY=1\nSTATUS=listening FDSTORE=1");
        assert_eq!(next(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=1500000\nSTATUS=draining");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_name_without_a_file_is_one_too() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("tenure-notify-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let manager = Manager { at: Some(address(&OsString::from(format!("@{name}"))).unwrap()) };
        manager.ready("listening");
        let mut heard = [0; 64];
        let read = listener.recv(&mut heard).unwrap();
        assert_eq!(&heard[..read], b"READY=1\nSTATUS=listening");
    }

    #[test]
    fn without_a_manager_nothing_is_said() {
        Manager { at: None }.ready("to nobody");
    }
}
