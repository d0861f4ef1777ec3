//! `tenure expose`: make something on this machine reachable by name.

use std::time::Duration;

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use tenure_client::proto::error::{ErrorCode, WireError};
use tenure_client::proto::ids::MemberKey;
use tenure_client::proto::name::ServiceName;
use tenure_client::proto::service::ServiceKind;
use tenure_client::relay::{Exposure, Target, Targets, dial_target};
use tokio::sync::mpsc;

use super::guest::{Stay, Who, ended};
use super::{Where, hostname};
use crate::exit::Failure;
use crate::output::{println, sentence};
use crate::signals::{Signals, interruptible};

/// How often the target is tried.
const PROBE: Duration = Duration::from_secs(10);
/// How long a request of this command may take, breaks included: it stays for as long as it is let.
const PATIENCE: Duration = Duration::from_secs(30);

/// Make something on this machine reachable by name, through the broker, for as long as this runs: through sleep, broken
/// networks and restarts of the broker. A byte stream for members of the mesh (`tenure connect`), or with --http a web
/// address for everybody who reaches the relay. The same name is the same session: started again within its lease, the
/// name was never gone.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Examples: tenure expose 5432 --name db\n          tenure expose 3000 --http --name web"
)]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// What to expose: PORT on this machine, or HOST:PORT
    #[arg(value_name = "PORT|HOST:PORT")]
    target: String,
    /// What it is called [default: this machine's name and the port]
    #[arg(long)]
    name: Option<String>,
    /// Make it public over HTTP, at the relay
    #[arg(long)]
    http: bool,
    /// A label; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// What it is, in a sentence
    #[arg(long)]
    description: Option<String>,
    /// Leave it out of lists: who knows the name reaches it
    #[arg(long)]
    hide: bool,
    /// Let only this member's sessions in; may be given several times
    #[arg(long = "allow", value_name = "MEMBER", conflicts_with = "http")]
    allow: Vec<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    interruptible(async move |mut signals| expose(args, &mut signals).await)
}

/// What the arguments come to.
struct Plan {
    name: ServiceName,
    target: Target,
}

fn plan(args: &Args) -> Result<Plan, Failure> {
    let usage = |text: String| Failure::Usage(text);
    let address = match args.target.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => args.target.clone(),
    };
    let port = address.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
        (!host.is_empty()).then_some(port)
    });
    let Some(port) = port else {
        return Err(usage(format!("{:?} is neither a port nor HOST:PORT", args.target)));
    };
    let name = args.name.clone().unwrap_or_else(|| default_name(hostname().as_deref(), port));
    let name = name.parse().map_err(|error: WireError| usage(error.message))?;
    let member = |text: &String| {
        text.parse::<MemberKey>()
            .map_err(|_| usage(format!("--allow takes a member's key, 64 hex digits, not {text:?}")))
    };
    let allow = args.allow.iter().map(member).collect::<Result<_, _>>()?;
    let kind = if args.http { ServiceKind::Http } else { ServiceKind::Tcp };
    Ok(Plan { name, target: Target { address, kind, allow } })
}

/// A name for whoever gives none: this machine's and the port, spelled as names are.
fn default_name(host: Option<&str>, port: u16) -> String {
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let host = host.and_then(|host| host.split('.').next()).unwrap_or_default().to_ascii_lowercase();
    let host: String = host.chars().map(plain).take(32).collect();
    match host.trim_matches('-') {
        "" => format!("port-{port}"),
        host => format!("{host}-{port}"),
    }
}

/// What happens while something is exposed.
enum Happened {
    /// A socket to the relay is there; HTTP services are found at this place.
    Socket(Option<String>),
    /// The target answers, or why not.
    Probed(Result<(), WireError>),
    /// The broker will not have this session any more.
    Over(WireError),
}

async fn expose(args: Args, signals: &mut Signals) -> Result<(), Failure> {
    let Plan { name, target } = plan(&args)?;
    let stay = Stay { patience: PATIENCE, talks: true, ..Stay::default() };
    let who = format!("expose-{name}");
    let guest = signals.unless(args.at.enter(Who::Named(&who), stay)).await?;
    let mut builder = guest.session.offer(name.as_str(), target.kind).hide(args.hide);
    builder = args.tags.iter().fold(builder, |builder, tag| builder.tag(tag));
    if let Some(text) = &args.description {
        builder = builder.description(text);
    }
    let mut offered = signals.unless(async { builder.await.map_err(|error| guest.failure(&error)) }).await?;

    let (tell, mut happened) = mpsc::channel(16);
    let exposure = Exposure::new(&guest.session, Targets::from([(name.clone(), target.clone())]));
    let carrying = tokio::spawn(carry(exposure, tell.clone()));
    let probing = tokio::spawn(probe(target.address.clone(), tell));
    let mut screen = Screen::new(args.json, &name, &target, guest.session.member());
    let outcome = loop {
        // All are cancel-safe.
        tokio::select! {
            () = signals.recv() => break Ok(()),
            verdict = offered.verdict() => match verdict {
                Ok(verdict) => {
                    let lost = verdict.as_ref().is_err_and(|error| !may_come(error));
                    screen.verdict(&verdict);
                    if let (true, Err(error)) = (lost, verdict) {
                        break Err(guest.failure(&error));
                    }
                }
                Err(end) => break Err(ended(end)),
            },
            Some(event) = happened.recv() => match event {
                Happened::Socket(place) => screen.socket(place),
                Happened::Probed(outcome) => {
                    offered.set_degraded(outcome.is_err());
                    screen.probed(outcome);
                }
                Happened::Over(error) => break Err(guest.failure(&error)),
            },
        }
    };
    carrying.abort();
    probing.abort();
    drop(offered);
    guest.leave_soon(signals).await;
    outcome
}

/// Whether a name that is not ours may yet be.
fn may_come(error: &WireError) -> bool {
    error.retryable || matches!(error.code, ErrorCode::NameTaken)
}

async fn carry(exposure: Exposure, tell: mpsc::Sender<Happened>) {
    let opened = |place: Option<&str>| {
        // Rarer than it is read.
        let _ = tell.try_send(Happened::Socket(place.map(str::to_owned)));
    };
    let error = exposure.run(opened).await;
    let _ = tell.send(Happened::Over(error)).await;
}

/// Tries the target for ever; says so when that comes to something else than before.
async fn probe(address: String, tell: mpsc::Sender<Happened>) {
    let mut was = true;
    loop {
        let outcome = dial_target(&address).await.map(drop);
        if std::mem::replace(&mut was, outcome.is_ok()) != outcome.is_ok()
            && tell.send(Happened::Probed(outcome)).await.is_err()
        {
            return;
        }
        tokio::time::sleep(PROBE).await;
    }
}

/// What is printed, and what it follows from.
struct Screen<'a> {
    json: bool,
    name: &'a ServiceName,
    target: &'a Target,
    member: MemberKey,
    /// Whether the name is ours.
    ours: bool,
    /// Where HTTP services are found, once a socket is there.
    place: Option<Option<String>>,
    /// Whether it was said that all is well. Nothing of the target is said before.
    ready: bool,
    /// Why the target is down, if it is.
    down: Option<WireError>,
}

impl<'a> Screen<'a> {
    fn new(json: bool, name: &'a ServiceName, target: &'a Target, member: MemberKey) -> Screen<'a> {
        Screen { json, name, target, member, ours: false, place: None, ready: false, down: None }
    }

    fn say(&self, text: &str, value: &Value) {
        if self.json {
            println(&value.to_string());
        } else {
            eprintln!("{text}");
        }
    }

    fn socket(&mut self, place: Option<String>) {
        self.place = Some(place);
        self.show_ready();
    }

    fn verdict(&mut self, verdict: &Result<(), WireError>) {
        self.ours = verdict.is_ok();
        match verdict {
            Ok(()) => self.show_ready(),
            Err(error) => {
                self.ready = false;
                let (name, code, message) = (self.name, error.code, sentence(&error.message));
                let value = json!({"event": "refused", "name": name, "code": code, "message": error.message});
                self.say(&format!("{name} is not ours: {code}: {message}"), &value);
            }
        }
    }

    fn probed(&mut self, outcome: Result<(), WireError>) {
        self.down = outcome.err();
        match &self.down {
            _ if !self.ready => {}
            None => {
                let (name, target) = (self.name, &self.target.address);
                self.say(&format!("{target} answers again"), &json!({"event": "online", "name": name}));
            }
            Some(_) => self.show_down(),
        }
    }

    /// Says that the target is down, if it is.
    fn show_down(&self) {
        let (Some(error), name) = (&self.down, self.name) else { return };
        let value = json!({"event": "degraded", "name": name, "message": error.message});
        self.say(&format!("nobody answers at {}; {name} stays", sentence(&error.message)), &value);
    }

    /// Says that all is well, once it is.
    fn show_ready(&mut self) {
        let (true, Some(place), false) = (self.ours, &self.place, self.ready) else { return };
        let (name, target) = (self.name, &self.target.address);
        let http = self.target.kind == ServiceKind::Http;
        let url = place.as_ref().filter(|_| http).map(|place| place.replace('*', name.as_str()));
        let kind = if http { "http" } else { "tcp" };
        let member = self.member;
        if self.json {
            let value = json!({"event": "ready", "name": name, "kind": kind, "url": url, "target": target, "member": member});
            println(&value.to_string());
        } else {
            match (&url, http) {
                (Some(url), _) => println(&format!("{url} leads to {target}")),
                (None, true) => {
                    println(&format!("{name} leads to {target}, but this broker has no relay for HTTP"))
                }
                (None, false) => {
                    println(&format!("{name} leads to {target}"));
                    eprintln!("reach it with: tenure connect {name} --expect-member {member}");
                }
            }
        }
        self.ready = true;
        self.show_down();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_of_the_machines() {
        assert_eq!(default_name(Some("Laptop-7.local"), 3000), "laptop-7-3000");
        assert_eq!(default_name(Some("größe"), 80), "gr--e-80");
        assert_eq!(default_name(Some("--"), 80), "port-80");
        assert_eq!(default_name(None, 80), "port-80");
        assert!(default_name(Some(&"x".repeat(300)), 65535).parse::<ServiceName>().is_ok());
    }
}
