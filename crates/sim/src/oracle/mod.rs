//! The judge of a world.
//!
//! What this is for: it hears facts ([`Seen`]) and finds broken promises. It shares no code with the rules it judges:
//! what follows from the promises is written down here once more, from the outside.
//!
//! What it promises: no false alarms, and therefore doubt for the accused. What a network may still hold, what a
//! process that slept finds in its socket, what a crash may have forgotten without breaking a promise, is never held
//! against anybody. Where doubt begins is said beside each rule.
//!
//! What it takes for granted of facts: they come in the order of their happening; what an SDK tells is told in the
//! order of its effects, so that everything is answered before an end. `Proof` is what the lease counts: bytes on the
//! current socket, and a hello when it is admitted. `SocketLost` is also said when the broker hangs up by itself. A
//! [`Place`](crate::seen::Place) is spelled the same in every fact about it. Every process reads its session's inbox;
//! who reads its member's says `Subscribes`. Nobody uses `fetch` or `dead.retry`. Any jump of the broker's wall clock
//! is told by `BrokerClockOff`, with `false` if it is less than an hour off.
//!
//! Where to read next: `world` for what all rules lean on, then a file per concern.

mod broker;
mod daemon;
mod fate;
mod hands;
mod inquiries;
mod letters;
mod lost;
mod order;
mod presence;
mod readers;
mod requests;
mod rewinds;
mod roll;
mod runs;
mod services;
mod session;
mod timing;
mod trail;
mod tray;
mod world;

#[cfg(test)]
mod tests;

use crate::seen::{Life, Seen};

use daemon::Daemons;
use fate::Fates;
use hands::Hands;
use inquiries::Inquiries;
use letters::Letters;
use lost::LastLook;
use order::Order;
use presence::Watchers;
use readers::Readers;
use requests::Requests;
use rewinds::Rewinds;
use roll::Roll;
use runs::Runs;
use services::Services;
use timing::Timing;
use world::World;

/// What a session may be found in.
const STATES: [&str; 4] = ["online", "grace", "beginning", "ending"];

/// A promise that was not kept.
#[derive(Clone, Debug)]
pub struct Violation {
    /// When.
    pub at: u64,
    /// Which rule, in a word or two: stable, so that shrinking can tell one from another.
    pub rule: &'static str,
    /// What happened, in a sentence.
    pub what: String,
}

/// Where violations are brought to.
#[derive(Debug, Default)]
struct Court {
    at: u64,
    violations: Vec<Violation>,
}

impl Court {
    fn accuse(&mut self, rule: &'static str, what: String) {
        self.violations.push(Violation { at: self.at, rule, what });
    }
}

/// A process, in a word.
fn who(life: Life) -> String {
    format!("s{}#{}", life.slot.0, life.number)
}

/// The judge of a world: hears facts, knows the promises, and nothing of how they are kept.
#[derive(Debug, Default)]
pub struct Oracle {
    court: Court,
    world: World,
    requests: Requests,
    readers: Readers,
    letters: Letters,
    hands: Hands,
    order: Order,
    timing: Timing,
    watchers: Watchers,
    fates: Fates,
    daemons: Daemons,
    runs: Runs,
    services: Services,
    rewinds: Rewinds,
    inquiries: Inquiries,
    roll: Roll,
    last: LastLook,
    /// The store has lost its end, and nobody has said so.
    end_lost: bool,
}

impl Oracle {
    /// Hears a fact.
    pub fn see(&mut self, at: u64, seen: &Seen) {
        self.court.at = at;
        let court = &mut self.court;
        self.world.see(at, seen, court);
        self.requests.see(seen, &self.world, court);
        self.readers.see(seen, &self.world, court);
        self.letters.see(seen, &self.world, court);
        // Order and timing look at what was handed out before; only then is this delivery among it.
        self.order.see(seen, &self.hands, &self.letters, &self.world, court);
        self.timing.see(seen, &self.hands, &self.letters, &self.world, court);
        self.hands.see(seen, &self.letters, &self.world, court);
        self.watchers.see(seen, &mut self.world, court);
        self.fates.see(seen, &self.letters, &self.hands, &self.world, court);
        self.daemons.see(seen, &self.world, court);
        self.runs.see(at, seen, &self.world, court);
        self.services.see(at, seen, &self.world, court);
        self.rewinds.see(seen, &self.letters, &self.world, court);
        self.inquiries.see(seen, &self.world, court);
        self.roll.see(at, seen, court);
        self.last.see(at, seen, &self.world);
        match seen {
            Seen::Impostor(slot, true) => {
                court.accuse("impostor", format!("a stranger was admitted as session {}", slot.0));
            }
            Seen::Attack(what, true) => court.accuse("attack", format!("an attack worked: {what}")),
            Seen::EndLost => self.end_lost = true,
            // Whatever is there now is another store, with its own end.
            Seen::LossAccepted | Seen::Rewound { .. } => self.end_lost = false,
            Seen::BrokerUp(_) if std::mem::take(&mut self.end_lost) => {
                court.accuse("damage", "a start did not notice that the store had lost its end".to_owned());
            }
            Seen::BrokerUp(findings) if !findings.is_empty() => {
                court.accuse(
                    "check",
                    format!("after a start the store is not sound: {}", findings.join("; ")),
                );
            }
            Seen::Census(sizes) => census(sizes, court),
            Seen::States(states) => {
                let mut known = std::collections::BTreeSet::new();
                for (slot, state) in states {
                    if !known.insert(slot) {
                        court.accuse("states", format!("session {} is there twice", slot.0));
                    }
                    if !STATES.contains(&state.as_str()) {
                        court.accuse("states", format!("session {} is in no known state: {state}", slot.0));
                    }
                }
            }
            Seen::Rest { quiet: false, waiting, .. } => {
                let waiting =
                    if waiting.is_empty() { "nobody knows for what".into() } else { waiting.join("; ") };
                court
                    .accuse("rest", format!("long after the last fault it does not come to rest: {waiting}"));
            }
            Seen::Over => {
                let (letters, hands, readers) = (&self.letters, &self.hands, &self.readers);
                self.last.judge(letters, hands, readers, &self.fates, &self.timing, &self.world, court);
                self.requests.judge(&self.world, court);
                self.daemons.judge(letters, &self.fates, &self.world, court);
            }
            _ => {}
        }
    }

    /// What was broken so far.
    pub fn violations(&self) -> &[Violation] {
        &self.court.violations
    }
}

fn census(sizes: &[(String, usize, usize)], court: &mut Court) {
    for (what, size, bound) in sizes.iter().filter(|(_, size, bound)| size > bound) {
        court.accuse("bounds", format!("{what} holds {size}, and may hold {bound}"));
    }
}
