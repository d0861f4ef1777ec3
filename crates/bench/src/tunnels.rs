//! Tunnels that people use otherwise, started to lead to the same target: `bore` and `rathole`, all ends on this machine.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::{TcpListener, TcpStream};

use crate::relay::Helper;

/// How long both ends of a tunnel may take to find each other.
const PATIENCE: Duration = Duration::from_secs(20);

/// A tunnel that leads to the target while this value is there.
pub(crate) struct Tunnel {
    pub(crate) name: &'static str,
    /// Where it is entered.
    pub(crate) addr: SocketAddr,
    _ends: [Helper; 2],
}

/// `bore`: a server that takes connections on a port and asks its client, over one connection each, to fetch them. In the clear.
pub(crate) async fn bore(program: &Path, target: SocketAddr) -> Result<Tunnel> {
    let port = free_port().await?.port().to_string();
    let server = start(Command::new(program).arg("server"))?;
    // Its client gives up at once when there is no server; the port of that cannot be chosen.
    answers(([127, 0, 0, 1], 7835).into()).await?;
    let to = target.port().to_string();
    let client = start(Command::new(program).args(["local", &to, "--to", "127.0.0.1", "--port", &port]))?;
    let addr = SocketAddr::from(([127, 0, 0, 1], port.parse()?));
    answers(addr).await?;
    Ok(Tunnel { name: "bore", addr, _ends: [server, client] })
}

/// `rathole`, in the clear or with Noise between its two ends.
pub(crate) async fn rathole(program: &Path, target: SocketAddr, home: &Path, noise: bool) -> Result<Tunnel> {
    let (control, addr) = (free_port().await?, free_port().await?);
    let (ours, theirs) = if noise { keys(program)? } else { (String::new(), String::new()) };
    let transport = |end: &str, key: &str| match noise {
        true => format!("[{end}.transport]\ntype = \"noise\"\n[{end}.transport.noise]\n{key}\n"),
        false => String::new(),
    };
    let server = format!(
        "[server]\nbind_addr = \"{control}\"\ndefault_token = \"bench\"\n{}[server.services.target]\nbind_addr = \"{addr}\"\n",
        transport("server", &ours)
    );
    let client = format!(
        "[client]\nremote_addr = \"{control}\"\ndefault_token = \"bench\"\n{}[client.services.target]\nlocal_addr = \"{target}\"\n",
        transport("client", &theirs)
    );
    let end = |name: &str, flag: &str, config: String| -> Result<Helper> {
        let file = home.join(format!("rathole-{name}-{noise}.toml"));
        std::fs::write(&file, config).with_context(|| format!("write {}", file.display()))?;
        start(Command::new(program).arg(flag).arg(file))
    };
    let ends = [end("server", "--server", server)?, end("client", "--client", client)?];
    answers(addr).await?;
    let name = if noise { "rathole, Noise" } else { "rathole" };
    Ok(Tunnel { name, addr, _ends: ends })
}

/// The lines of configuration with a new pair of keys: the server's, and the client's.
fn keys(program: &Path) -> Result<(String, String)> {
    let output = Command::new(program).arg("--genkey").output().context("ask rathole for keys")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let behind = |title: &str| -> Result<String> {
        let mut lines = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
        Ok(lines.next().with_context(|| format!("rathole prints no {title}"))?.trim().to_owned())
    };
    let (private, public) = (behind("Private")?, behind("Public")?);
    Ok((format!("local_private_key = \"{private}\""), format!("remote_public_key = \"{public}\"")))
}

fn start(command: &mut Command) -> Result<Helper> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(Helper(child.with_context(|| format!("start {program}"))?))
}

async fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?)
}

/// Waits until somebody takes connections there.
async fn answers(addr: SocketAddr) -> Result<()> {
    let asking = async {
        while TcpStream::connect(addr).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, asking).await.is_err() {
        bail!("a tunnel is not at {addr} after {} s", PATIENCE.as_secs());
    }
    Ok(())
}
