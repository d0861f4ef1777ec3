//! What people call things: addresses, display names, logs. Everything that can be refused without a broker is.

use tenure_client::Start;
use tenure_client::proto::ids::ClientMessageId;
use tenure_client::proto::log::LogName;
use tenure_client::proto::message::Address;
use tenure_client::proto::name::{GroupName, TopicName};
use tenure_client::proto::number::U53;
use tenure_client::proto::peer::Peer;

use super::guest::Guest;
use crate::exit::Failure;
use crate::output::safe;

/// Candidates that are named when a display name does not tell who is meant.
const CANDIDATES: usize = 10;

/// Where a message is to go, as it was typed.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// An address.
    Address(Address),
    /// What somebody calls themselves.
    Name(String),
}

/// Reads an address; what is none is a display name.
pub(crate) fn target(text: &str) -> Result<Target, String> {
    let kind = text.split_once(':').map(|(kind, _)| kind);
    match kind {
        Some("session" | "member" | "topic") => {
            text.parse().map(Target::Address).map_err(|error: tenure_client::proto::WireError| error.message)
        }
        _ if text.is_empty() => Err("name somebody, or give an address".to_owned()),
        _ => Ok(Target::Name(text.to_owned())),
    }
}

/// Reads the name of a topic.
pub(crate) fn topic(text: &str) -> Result<TopicName, String> {
    text.parse().map_err(|error: tenure_client::proto::WireError| error.message)
}

/// Reads the name of a group.
pub(crate) fn group(text: &str) -> Result<GroupName, String> {
    text.parse().map_err(|error: tenure_client::proto::WireError| error.message)
}

/// Reads a log; the name of a topic is its first partition.
pub(crate) fn log(text: &str) -> Result<LogName, String> {
    let log =
        if text.contains('/') { text.parse() } else { text.parse().map(|name| LogName::Topic(name, 0)) };
    log.map_err(|error: tenure_client::proto::WireError| error.message)
}

/// Reads a sender's id for a message.
pub(crate) fn message_id(text: &str) -> Result<ClientMessageId, String> {
    text.parse()
        .map_err(|_| "an id is 1 to 128 printable ASCII characters and does not start with 'run:'".to_owned())
}

/// Reads where to begin.
pub(crate) fn start(text: &str) -> Result<Start, String> {
    match text {
        "new" => Ok(Start::New),
        "earliest" => Ok(Start::Earliest),
        number => {
            let seq = number.parse().ok().filter(|seq| *seq <= U53::MAX.get());
            let seq = seq.ok_or_else(|| "give new, earliest or the number of an entry".to_owned())?;
            Ok(Start::Seq(U53::saturating(seq)))
        }
    }
}

/// The address behind what was typed. A name that means nobody, or several, is told with those it might mean.
pub(crate) async fn resolve(guest: &Guest, target: &Target) -> Result<Address, Failure> {
    let name = match target {
        Target::Address(address) => return Ok(address.clone()),
        Target::Name(name) => name,
    };
    let peers = guest.peers().await?;
    let named: Vec<&Peer> = peers.iter().filter(|peer| peer.name == *name).collect();
    match named.as_slice() {
        [peer] => Ok(Address::Session(peer.session)),
        [] if peers.is_empty() => {
            Err(Failure::Usage(format!("nobody called {name:?} is here, nor anybody else")))
        }
        [] => {
            let everybody: Vec<&Peer> = peers.iter().collect();
            Err(Failure::Usage(format!(
                "nobody called {name:?} is here; somebody who is gone is reached by address{}",
                candidates("these are:", &everybody)
            )))
        }
        several => Err(Failure::Usage(format!(
            "{} sessions are called {name:?}; say which one by its address{}",
            several.len(),
            candidates("they are:", several)
        ))),
    }
}

fn candidates(title: &str, peers: &[&Peer]) -> String {
    let mut text = format!("\n{title}");
    for peer in peers.iter().take(CANDIDATES) {
        let host = peer.host.as_deref().map(|host| format!(" on {}", safe(host))).unwrap_or_default();
        text += &format!("\n  {}{host}  session:{}", safe(&peer.name), peer.session);
    }
    if peers.len() > CANDIDATES {
        text += &format!("\n  and {} more; see `tenure peers`", peers.len() - CANDIDATES);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_stands_for_its_first_partition() {
        assert_eq!(log("jobs").unwrap().to_string(), "topic/jobs/0");
        assert_eq!(log("topic/jobs/3").unwrap().to_string(), "topic/jobs/3");
        assert!(log("Jobs").is_err() && log("jobs/0").is_err());
    }

    #[test]
    fn only_the_three_kinds_are_addresses() {
        assert!(matches!(target("topic:jobs"), Ok(Target::Address(Address::Topic(_)))));
        assert!(matches!(target("a: b"), Ok(Target::Name(_))));
        assert!(target("session:alice").is_err() && target("topic:No Topic").is_err() && target("").is_err());
    }
}
