//! The systems of one part of the run, all started, each with fresh data.

use anyhow::Result;

use super::findings::Findings;
use super::peer::{Answer, Peer};
use super::peers::{Ground, Kind};

/// Systems that run.
pub(crate) struct Systems(Vec<(Kind, Box<dyn Peer>)>);

impl Systems {
    /// Starts those of `kinds` that are installed; says of the others why not.
    pub(crate) async fn start(kinds: &[Kind], ground: &Ground, findings: &mut Findings) -> Result<Systems> {
        let mut systems = Vec::new();
        for kind in kinds.iter().copied() {
            if let Some(peer) = one(kind, ground, findings).await? {
                systems.push((kind, peer));
            }
        }
        Ok(Systems(systems))
    }

    /// Those that keep messages.
    pub(crate) fn keeping(&self) -> impl Iterator<Item = (Kind, &dyn Peer)> {
        self.0.iter().filter(|(_, peer)| peer.keeps_messages()).map(|(kind, peer)| (*kind, &**peer))
    }
}

/// Starts one; nothing when it is not installed, which is said.
pub(crate) async fn one(
    kind: Kind,
    ground: &Ground,
    findings: &mut Findings,
) -> Result<Option<Box<dyn Peer>>> {
    match kind.start(ground).await? {
        Answer::Yes(peer) => {
            findings.system(peer.about());
            Ok(Some(peer))
        }
        Answer::No(why) => {
            findings.skip(kind.key(), None, why);
            Ok(None)
        }
    }
}
