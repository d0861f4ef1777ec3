//! `tenure join`: become a member of a mesh, by a link.

use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_client::proto::canonical::member_key;
use tenure_client::proto::invite::InviteLink;
use tenure_client::proto::peer::Profile;
use tenure_client::{Options, random_key};

use super::{Where, guest, leave};
use crate::exit::Failure;
use crate::home::Home;
use crate::output::println;

/// The file of the mesh that was joined last.
const FILE: &str = "joined.json";

/// Join a mesh by the link that one of its operators made with `tenure invite`.
///
/// This machine's member key becomes a member. Commands go there from then on, unless --broker or --mesh say otherwise.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: tenure join 'ws://10.0.0.5:7400#tenure-invite.v1.…'")]
pub(crate) struct Args {
    /// The link; `-` reads it from stdin, where no history keeps it
    link: String,
    /// Believe only this authority about a broker at wss://, a PEM file, now and later [default: those of the system]
    #[arg(long, value_name = "FILE", env = "TENURE_CA")]
    ca: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where this machine's commands go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Joined {
    /// The broker.
    pub(crate) broker: String,
    /// The mesh.
    pub(crate) mesh: String,
    /// Whom to believe about the broker, a PEM file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
}

/// What `tenure join` has left; read once.
pub(crate) fn joined() -> Option<&'static Joined> {
    static JOINED: OnceLock<Option<Joined>> = OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string(path(&Home::find().ok()?)).ok()?;
        let joined = serde_json::from_str(&text);
        if joined.is_err() {
            eprintln!("warning: {FILE} in TENURE_HOME does not read; join again, or delete it");
        }
        joined.ok()
    };
    JOINED.get_or_init(read).as_ref()
}

fn path(home: &Home) -> PathBuf {
    home.path().join(FILE)
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let link = match args.link.as_str() {
        "-" => {
            let mut line = String::new();
            let read = std::io::stdin().read_line(&mut line);
            read.map_err(|error| Failure::Failed(format!("read the link: {error}")))?;
            line
        }
        link => link.to_owned(),
    };
    let link = InviteLink::read(&link).map_err(|error| Failure::Usage(error.message))?;
    let home = Home::find()?;
    let key = home.member_key()?;
    let member = member_key(&key);
    // Later commands stand elsewhere.
    let ca = args.ca.filter(|path| !path.as_os_str().is_empty()).map(std::path::absolute).transpose();
    let ca = ca.map_err(|error| Failure::Usage(format!("find the authority: {error}")))?;
    let joined = Joined { broker: link.broker, mesh: link.says.mesh.to_string(), ca };
    let at =
        Where { broker: Some(joined.broker.clone()), mesh: Some(joined.mesh.clone()), ca: joined.ca.clone() };
    let options = at
        .believing(Options::new(at.broker(), key, "tenure join")?)?
        .session_key(random_key()?)
        .mesh(at.mesh())?
        .profile(Profile { tags: vec![guest::VISIT.to_owned()], ..Profile::named("tenure join") })?
        .client("tenure", env!("CARGO_PKG_VERSION"))
        .invite(&link.invite);
    crate::block_on(async {
        let (session, events) = at.connect(options).await?;
        leave(session, events).await;
        Ok(())
    })?;
    keep(&home, &joined)?;
    if args.json {
        println(&json!({"mesh": joined.mesh, "broker": joined.broker, "member": member}).to_string());
    } else {
        println(&format!("joined {} at {}", joined.mesh, joined.broker));
    }
    Ok(())
}

/// Writes the file aside and moves it into place, so that nobody reads half of it.
fn keep(home: &Home, joined: &Joined) -> Result<(), Failure> {
    let path = path(home);
    let failed = |error: std::io::Error| {
        Failure::Failed(format!("joined, but could not keep {}: {error}", path.display()))
    };
    let aside = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = std::fs::File::create(&aside).map_err(failed)?;
    writeln!(file, "{}", json!(joined)).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&aside, &path).map_err(failed)
}
