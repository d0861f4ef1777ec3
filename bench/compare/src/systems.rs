//! The systems of one part of the run, all started, each with fresh data; and whose turn it is.

use std::path::Path;

use super::findings::Findings;
use super::peer::{Answer, Peer};
use super::peers::{Ground, Kind};
use tenure_bench::ids::Dice;

/// Systems that run.
pub(crate) struct Systems(Vec<(Kind, Box<dyn Peer>)>);

impl Systems {
    /// Starts those of `kinds` that are installed; says of the others why not.
    pub(crate) async fn start(kinds: &[Kind], ground: &Ground, findings: &mut Findings) -> Systems {
        let mut systems = Vec::new();
        for kind in kinds.iter().copied() {
            if let Some(peer) = one(kind, ground, findings).await {
                systems.push((kind, peer));
            }
        }
        Systems(systems)
    }

    /// Those that keep messages.
    pub(crate) fn keeping(&self) -> impl Iterator<Item = (Kind, &dyn Peer)> {
        self.0.iter().filter(|(_, peer)| peer.keeps_messages()).map(|(kind, peer)| (*kind, &**peer))
    }
}

/// Starts one; nothing when it is not installed or does not start, which is said.
pub(crate) async fn one(kind: Kind, ground: &Ground, findings: &mut Findings) -> Option<Box<dyn Peer>> {
    match kind.start(ground).await {
        Ok(Answer::Yes(peer)) => {
            findings.system(peer.about());
            return Some(peer);
        }
        Ok(Answer::No(why)) => findings.skip(kind.key(), None, why),
        Err(error) => findings.skip(kind.key(), None, format!("it does not start: {error:#}")),
    }
    None
}

/// Lets the disk come to rest: what was written before and not synced is not for the next one's syncs to write.
pub(crate) fn calm(dir: &Path) {
    // Where it cannot be done the figures are only noisier.
    if let Ok(dir) = std::fs::File::open(dir) {
        let _ = rustix::fs::syncfs(dir);
    }
}

/// The order of `count` systems in a round of a case: another one each time, so that nobody always pays for the same
/// neighbour.
pub(crate) fn turns(case: usize, round: usize, count: usize) -> Vec<usize> {
    let seed = (case as u64) << 32 | (round as u64 + 1);
    let (mut dice, mut turns) = (Dice::new(seed), (0..count).collect::<Vec<_>>());
    for last in (1..count).rev() {
        turns.swap(last, dice.within(0..last as u64 + 1) as usize);
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_turn_in_every_round_and_in_another_place() {
        let mut first = turns(0, 0, 12);
        assert_ne!(first, turns(0, 1, 12));
        assert_ne!(first, turns(1, 0, 12));
        first.sort_unstable();
        assert!(first.into_iter().eq(0..12));
        assert_eq!((turns(0, 3, 0), turns(0, 3, 1)), (vec![], vec![0]));
    }
}
