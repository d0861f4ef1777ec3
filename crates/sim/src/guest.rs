//! Guests: members of nobody's cast, who come with an invite or without, and try what they may do. They write their frames
//! by hand, and send nothing that others would get.

use ed25519_dalek::SigningKey;
use serde_json::{Value, json};
use tenure_proto::canonical::member_key;
use tenure_proto::ids::MemberKey;
use tenure_proto::invite::{Invite, Role};
use tenure_proto::number::U53;

use crate::net::{Frame, Way, WireId};
use crate::operator::{ALL, caps_of, invite_id};
use crate::rng::Rng;
use crate::seen::{Matter, Person, Seen};
use crate::stranger::Aim;
use crate::world::{Event, World};

/// How many guests a world has.
pub(crate) const GUESTS: u8 = 3;
/// How many invites are handed out in a world.
pub(crate) const INVITES: u8 = 4;
/// What an invite gives, by its number.
const GIVES: [&str; INVITES as usize] = [ALL, "read", "send,read", "run"];
/// How long an invite is good.
const INVITE_MS: u64 = 30 * 24 * 3_600_000;
/// How often a guest tries what it may do, and how long it waits between.
const TRIES: usize = 3;
const BETWEEN_MS: u64 = 2_500;
/// What tells whether somebody has a right: a request that changes nothing.
const TRIED: [(&str, &str); 3] = [("send", "send.status"), ("read", "topics.list"), ("run", "runs.list")];

/// A guest's visit.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    guest: u8,
    /// Which invite it brings.
    invite: Option<u8>,
    /// When it said hello.
    since: u64,
    inside: bool,
    /// When it tried; at most [`TRIES`].
    tried: Vec<u64>,
}

/// How many keys an invite lets in, by its number.
pub(crate) fn uses(invite: u8) -> u32 {
    1 + u32::from(invite % 2)
}

/// What whoever comes by an invite may do, by its number.
pub(crate) fn gives(invite: u8) -> &'static str {
    GIVES[usize::from(invite % INVITES)]
}

impl World {
    fn guest_seed(&self, guest: u8) -> SigningKey {
        SigningKey::from_bytes(&self.root.fork(3_000 + u64::from(guest)).bytes())
    }

    /// The key of a guest.
    pub(crate) fn guest_key(&self, guest: u8) -> MemberKey {
        member_key(&self.guest_seed(guest))
    }

    /// A guest comes.
    pub(crate) fn invite_guest(&mut self, rng: &mut Rng) -> bool {
        let guest = rng.below(u64::from(GUESTS)) as u8;
        let invite = rng.chance(700).then(|| rng.below(u64::from(INVITES)) as u8);
        let visit = Visit { guest, invite, since: 0, inside: false, tried: Vec::new() };
        self.come(Aim::Guest(visit), self.guest_seed(guest), rng)
    }

    /// Whether this stranger is a guest.
    pub(crate) fn is_guest(&self, index: usize) -> bool {
        self.strangers.get(index).is_some_and(|stranger| matches!(stranger.aim, Aim::Guest(_)))
    }

    /// What the hello of a guest brings; nothing if this is none.
    pub(crate) fn guest_hello(&mut self, index: usize) -> Option<Value> {
        let (t, stranger) = (self.t, self.strangers.get_mut(index)?);
        let Aim::Guest(visit) = &mut stranger.aim else { return None };
        visit.since = t;
        let (guest, invite) = (visit.guest, visit.invite);
        let wall = self.broker.now(t).wall;
        let text = invite.and_then(|number| {
            let invite = Invite {
                mesh: "default".parse().ok()?,
                id: invite_id(number)?,
                by: member_key(&self.operator.owner),
                role: Role::Member,
                caps: caps_of(gives(number)),
                uses: uses(number),
                exp: U53::saturating(wall + INVITE_MS),
            };
            Some(invite.issue(&self.operator.owner))
        });
        if invite.is_some() {
            // Who joins by an invite is what the invite says, whatever the operator thought of it before.
            self.operator.leaves(Matter::Member(Person::Guest(guest)));
        }
        self.operator.known.insert(Matter::Member(Person::Guest(guest)));
        self.see(&Seen::GuestKnocks {
            guest,
            invite: invite.map(|number| (number, gives(number).to_owned())),
        });
        Some(text.map_or_else(|| json!({}), |text| json!({"auth": {"invite": text}})))
    }

    /// A guest is answered.
    pub(crate) fn guest_hears(&mut self, index: usize, answer: &Value) {
        let t = self.t;
        let Some(stranger) = self.strangers.get_mut(index) else { return };
        let Aim::Guest(visit) = &mut stranger.aim else { return };
        let (ok, code) = (answer["ok"] == true, answer["error"]["code"].as_str().unwrap_or_default());
        if answer["id"] == "hello" {
            visit.inside = ok;
            let (guest, invite, since) = (visit.guest, visit.invite, visit.since);
            let outcome = if ok { Ok(()) } else { Err(code.to_owned()) };
            self.see(&Seen::GuestEnters { guest, invite, uses: invite.map_or(0, uses), since, outcome });
            if ok {
                self.at(t + 1, Event::Stranger { index });
            }
            return;
        }
        let id = answer["id"].as_str().and_then(|id| id.split_once('-'));
        let Some((right, since)) =
            id.and_then(|(right, tried)| Some((right, *visit.tried.get(tried.parse::<usize>().ok()?)?)))
        else {
            return;
        };
        if ok || code == "forbidden" {
            let guest = visit.guest;
            self.see(&Seen::GuestMay { guest, right: right.to_owned(), since, allowed: ok });
        }
    }

    /// A guest tries what it may do; says whether it has more to try.
    pub(crate) fn guest_tries(&mut self, index: usize, wire: WireId) -> bool {
        let t = self.t;
        let Some(stranger) = self.strangers.get_mut(index) else { return false };
        let Aim::Guest(visit) = &mut stranger.aim else { return false };
        if !visit.inside || visit.tried.len() >= TRIES {
            return false;
        }
        let tried = visit.tried.len();
        visit.tried.push(t);
        for (right, method) in TRIED {
            let params =
                if method == "send.status" { json!({"clientMessageIds": ["none"]}) } else { json!({}) };
            let frame =
                json!({"type": "req", "id": format!("{right}-{tried}"), "method": method, "params": params});
            self.send(wire, Way::Up, Frame::Data(frame.to_string().into_bytes()));
        }
        self.at(t + BETWEEN_MS, Event::Stranger { index });
        true
    }
}
