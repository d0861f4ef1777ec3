//! Rewinds: whoever has read a history that is not the broker's any more is told so, once for each time and log, and nobody
//! else.
//!
//! Where doubt begins: only a topic tells for sure, in a world that forgets nothing, and only if the last that came of it was
//! asked for after the store had been copied. What was pruned counts as known, and an inbox prunes what is settled.

use std::collections::BTreeMap;

use crate::seen::{Handed, Life, Place, Seen};

use super::letters::Letters;
use super::world::World;
use super::{Court, who};

/// What processes know of the logs that they read.
#[derive(Debug, Default)]
pub(super) struct Rewinds {
    readers: BTreeMap<Life, Reader>,
}

/// What one process knows.
#[derive(Debug, Default)]
struct Reader {
    /// The highest entry that came, by subscription and log: its number, when it was first asked for, and when it came.
    newest: BTreeMap<(Place, String), (u64, u64, u64)>,
    /// How often the store had gone back when it was last attached; nothing before that.
    attached: Option<usize>,
    /// How often it had when it was last told so, by log, and when it was first attached: nothing of that is news.
    told: BTreeMap<String, usize>,
    first: usize,
    /// Whether it has yet to be told.
    must: bool,
}

impl Reader {
    /// It is told.
    fn told(&mut self, life: Life, logs: &[String], court: &mut Court) {
        let rewinds = self.attached.unwrap_or(0);
        for log in logs {
            let before = self.told.insert(log.clone(), rewinds).unwrap_or(self.first);
            if rewinds <= before {
                let text = format!("{} was told that {log} was rewound, and it was not since", who(life));
                court.accuse("rewind", text);
            }
        }
        self.must = false;
    }

    /// It is attached again, or gone: what it was told since it last was is all.
    fn judge(&mut self, life: Life, court: &mut Court) {
        if std::mem::take(&mut self.must) {
            let text =
                format!("{} was not told that history was rewound, and has read what is lost", who(life));
            court.accuse("rewind", text);
        }
    }

    fn attached(&mut self, life: Life, letters: &Letters, world: &World) {
        let now = world.being(life).rewinds;
        let before = self.attached.replace(now);
        if before.is_none() {
            self.first = now;
        }
        // A place whose entry has expired tells a broker nothing; nor does one that it lost when it had answered the hello.
        let lost = |((_, log), (seq, sent_at, came_at)): (&(Place, String), &(u64, u64, u64))| {
            world.broker.has_lost(*sent_at, *came_at, now) && !letters.may_have_expired_at(log, *seq, world)
        };
        let rewound = before.is_some_and(|before| before < now);
        self.must = rewound && world.broker.forgets.is_none() && self.newest.iter().any(lost);
        if rewound {
            self.newest.clear();
        }
    }
}

impl Rewinds {
    pub(super) fn see(&mut self, seen: &Seen, letters: &Letters, world: &World, court: &mut Court) {
        match seen {
            Seen::Handed(life, Handed { place: place @ Place::Topic { .. }, spot, key, .. }) => {
                let reader = self.readers.entry(*life).or_default();
                let newest = reader.newest.entry((place.clone(), spot.log.clone())).or_default();
                *newest = (*newest).max((spot.seq, letters.sent_at(key), world.now));
            }
            Seen::Unsubscribes(life, place) | Seen::SubEnded(life, place, _) => {
                self.readers.entry(*life).or_default().newest.retain(|(other, _), _| other != place);
            }
            Seen::HistoryRewound(life, logs) => {
                self.readers.entry(*life).or_default().told(*life, logs, court);
            }
            Seen::Attached { life, .. } => {
                let reader = self.readers.entry(*life).or_default();
                reader.judge(*life, court);
                reader.attached(*life, letters, world);
            }
            Seen::Killed(life) => _ = self.readers.remove(life),
            Seen::Ended(life, _) => {
                if let Some(mut reader) = self.readers.remove(life) {
                    reader.judge(*life, court);
                }
            }
            Seen::Over => self.readers.iter_mut().for_each(|(life, reader)| reader.judge(*life, court)),
            _ => {}
        }
    }
}
