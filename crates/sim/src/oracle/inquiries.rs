//! Inquiries: who asks behind a message what became of it is never told that nobody knows it, when it is accepted after that.
//!
//! Where doubt begins: a send that was refused for now is sent again by its SDK, later than the answer to the inquiry. So what
//! is judged is one socket, in a run in which nothing was wrong with the disk.

use std::collections::BTreeMap;

use crate::seen::{Fate, Key, Life, Seen};

use super::world::World;
use super::{Court, who};

/// How soon after a wrong answer its message is accepted: a refusal that passes asks for at least twice that.
const SOON_MS: u64 = 500;

/// What processes asked.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    /// When the socket was attached that each was asked on.
    asked: BTreeMap<(Life, Key), u64>,
    /// Those that were told that nobody knows it: when, and on which socket.
    unknown: BTreeMap<(Life, Key), (u64, u64)>,
}

impl Inquiries {
    pub(super) fn see(&mut self, seen: &Seen, world: &World, court: &mut Court) {
        match seen {
            Seen::Inquires(life, key) => {
                if let Some(attached) = world.being(*life).attached {
                    self.asked.insert((*life, key.clone()), attached);
                }
            }
            Seen::Inquired(life, key, fate) => {
                let Some(attached) = self.asked.remove(&(*life, key.clone())) else { return };
                let same = world.being(*life).attached == Some(attached) && world.is_current(*life);
                if *fate == Fate::Unknown && same && !world.broker.trouble && !world.broker.blind {
                    self.unknown.insert((*life, key.clone()), (world.now, attached));
                }
            }
            Seen::Answered { life, key, outcome: Ok((_, false)), .. } => {
                let Some((at, attached)) = self.unknown.remove(&(*life, key.clone())) else { return };
                let same = world.being(*life).attached == Some(attached);
                if same && world.now <= at + SOON_MS {
                    let text = format!(
                        "{} was told that nobody knows {}, and then that it is accepted, which it had asked for before",
                        who(*life),
                        key.id
                    );
                    court.accuse("status", text);
                }
            }
            Seen::Killed(life) | Seen::Ended(life, _) => {
                self.asked.retain(|(other, _), _| other != life);
                self.unknown.retain(|(other, _), _| other != life);
            }
            _ => {}
        }
    }
}
