//! The operator: a person who decides who may come in and on which numbers the mesh runs, and who looks at every start
//! whether that still holds.
//!
//! All of it goes through [`Input::Operate`], as it does in a broker that ships. What was answered is on disk; what was not
//! may be or not, so the operator asks again.

use std::collections::{BTreeMap, BTreeSet};

use ed25519_dalek::SigningKey;
use serde_json::Value;
use tenure_mesh::access::MemberRecord;
use tenure_mesh::access::admin::{Act, OperateId, Operated, Operation, Page};
use tenure_mesh::access::setting::{self, Values};
use tenure_mesh::input::Banned;
use tenure_mesh::{Input, MeshConfig};
use tenure_proto::canonical::member_key;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{GrantId, MemberKey};
use tenure_proto::invite::Role;
use tenure_proto::name::Cap;

use crate::rng::Rng;
use crate::seen::{Matter, Person, Seen, Slot};
use crate::world::{Event, World};

/// What somebody is who may do all that members may.
pub(crate) const ALL: &str = "all";
/// The settings that the operator changes; the others follow from the lease.
const NUMBERS: [&str; 6] =
    ["leaseTtlMs", "pingIntervalMs", "staleAfterMs", "tickIntervalMs", "reconnectGraceMs", "ackTimeoutMs"];

/// What the operator wants of a matter.
#[derive(Clone, Debug)]
struct Want {
    /// How it shall be; absent is not at all.
    value: Option<String>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be asked for.
    Open,
    /// Asked for, not answered.
    Asked,
    /// So it is, as far as anybody can tell before the next start.
    Settled,
}

/// What an operation was for.
#[derive(Clone, Debug)]
enum Asked {
    Decision(Matter, Option<String>),
    Look {
        at_start: bool,
    },
    /// The version of the settings, to change them.
    Version,
    Kick(Slot),
}

/// An operator.
pub(crate) struct Operator {
    rng: Rng,
    numbered: u64,
    asked: BTreeMap<OperateId, Asked>,
    wants: BTreeMap<Matter, Want>,
    /// The numbers that the operator wants, if other ones than the broker's own.
    numbers: Option<MeshConfig>,
    /// Why each session that is kept out is.
    out: BTreeMap<Slot, BTreeSet<Matter>>,
    /// Whether not everybody may join, as far as the operator knows.
    closed: bool,
    /// What was ever decided or changed, and is to be looked for.
    pub(crate) known: BTreeSet<Matter>,
    /// The first member of a mesh that not everybody may join, who signs its invites.
    pub(crate) owner: SigningKey,
}

impl Operator {
    pub(crate) fn new(mut rng: Rng) -> Operator {
        let owner = SigningKey::from_bytes(&rng.bytes());
        Operator {
            rng,
            numbered: 0,
            asked: BTreeMap::new(),
            wants: BTreeMap::new(),
            numbers: None,
            out: BTreeMap::new(),
            closed: false,
            known: BTreeSet::new(),
            owner,
        }
    }

    /// What the operator still waits for, in words.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = String> + '_ {
        let open = self.wants.iter().filter(|(_, want)| want.state != State::Settled);
        open.map(|(matter, want)| format!("the operator for {matter:?} to be {:?}", want.value))
    }

    /// Whether the operator wants a matter to be so.
    pub(crate) fn wants(&self, matter: Matter) -> Option<&str> {
        self.wants.get(&matter)?.value.as_deref()
    }

    /// Somebody else than the operator may have changed a matter, and the operator lets them.
    pub(crate) fn leaves(&mut self, matter: Matter) {
        self.wants.remove(&matter);
    }
}

impl World {
    /// A mesh that not everybody may join has its members from the beginning.
    pub(crate) fn begin_operator(&mut self) {
        if !self.scenario.owned {
            return;
        }
        let want = |value: &str| Want { value: Some(value.to_owned()), state: State::Open };
        self.operator.wants.insert(Matter::Founded, want("yes"));
        for member in self.scenario.clone().cast.iter().map(|role| role.member) {
            self.operator.wants.insert(Matter::Member(Person::Cast(member)), want(ALL));
        }
    }

    /// The operator wants a matter to be so from here on.
    pub(crate) fn want(&mut self, matter: Matter, value: Option<String>) {
        let asked = self.operator.wants.get(&matter).is_some_and(|want| want.state == State::Asked);
        let state = if asked { State::Asked } else { State::Open };
        self.operator.wants.insert(matter, Want { value, state });
        self.ask_for(matter);
    }

    /// The operator wants the mesh to run on these numbers.
    pub(crate) fn want_numbers(&mut self, config: MeshConfig) {
        let value = numbers(&setting::all(&config));
        self.operator.numbers = Some(config);
        self.want(Matter::Settings, Some(value));
    }

    /// The operator ends a session's lease.
    pub(crate) fn kick(&mut self, slot: Slot) -> bool {
        let Some(session) = self.names.session_key(slot) else { return false };
        if !self.broker.is_up() {
            return false;
        }
        self.keep_out(slot, Matter::Kick(slot), true);
        self.operate(Asked::Kick(slot), Act::Kick(session, "noise".to_owned()));
        true
    }

    /// Every matter that is not as it shall be is asked for.
    pub(crate) fn operator_turn(&mut self) {
        for matter in self.operator.wants.keys().copied().collect::<Vec<_>>() {
            self.ask_for(matter);
        }
    }

    /// The broker has started: what was under way is lost, and the operator looks at what is there.
    pub(crate) fn operator_looks(&mut self, at_start: bool) {
        if at_start {
            self.operator.asked.clear();
            for want in self.operator.wants.values_mut() {
                want.state = State::Open;
            }
            for slot in self.operator.out.keys().copied().collect::<Vec<_>>() {
                self.keep_out(slot, Matter::Kick(slot), false);
            }
        }
        for act in [
            Act::Overview,
            Act::Bans(Page::default()),
            Act::Members(Page::default()),
            Act::Invites(Page::default()),
            Act::Settings,
        ] {
            self.operate(Asked::Look { at_start }, act);
        }
    }

    /// Whether the operator waits for what there is.
    pub(crate) fn operator_is_looking(&self) -> bool {
        self.broker.is_up() && self.operator.asked.values().any(|asked| matches!(asked, Asked::Look { .. }))
    }

    fn operate(&mut self, asked: Asked, act: Act) {
        let Some(running) = &mut self.broker.running else { return };
        self.operator.numbered += 1;
        let id = OperateId(self.operator.numbered);
        self.operator.asked.insert(id, asked);
        let operation = Operation { who: "operator".to_owned(), from: "127.0.0.1".to_owned(), act };
        running.inputs.push_back(Input::Operate { id, operation: Box::new(operation) });
        self.broker_turn();
    }

    fn ask_for(&mut self, matter: Matter) {
        let Some(want) = self.operator.wants.get_mut(&matter) else { return };
        if want.state != State::Open || self.broker.running.is_none() {
            return;
        }
        want.state = State::Asked;
        let value = want.value.clone();
        if matter == Matter::Settings {
            return self.operate(Asked::Version, Act::Settings);
        }
        if let Some(act) = self.act_of(matter, value.as_deref()) {
            self.decide(matter, value, act);
        }
    }

    fn decide(&mut self, matter: Matter, value: Option<String>, act: Act) {
        self.operator.known.insert(matter);
        self.see(&Seen::Asks(matter, value.clone()));
        self.keep_out_by(matter, value.is_some());
        self.operate(Asked::Decision(matter, value), act);
    }

    fn act_of(&self, matter: Matter, value: Option<&str>) -> Option<Act> {
        Some(match (matter, value) {
            (Matter::Founded, _) => Act::Found(member_key(&self.operator.owner)),
            (Matter::Ban(slot), on) => {
                let subject = Banned::Session(self.names.session_key(slot)?);
                if on.is_some() { Act::Ban(subject, "noise".to_owned()) } else { Act::Unban(subject) }
            }
            (Matter::Member(person), None) => Act::DropMember(self.key_of(person)?),
            (Matter::Member(person), Some(value)) => Act::PutMember {
                member: self.key_of(person)?,
                role: Some(Role::Member),
                caps: Some(caps_of(value)),
                name: None,
            },
            (Matter::Revoked(invite), _) => Act::RevokeInvite(invite_id(invite)?),
            (Matter::Settings | Matter::Kick(_), _) => return None,
        })
    }

    fn key_of(&self, person: Person) -> Option<MemberKey> {
        match person {
            Person::Cast(member) => self.names.member_key(member),
            Person::Guest(guest) => Some(self.guest_key(guest)),
        }
    }

    /// Sessions that a decision keeps out, or does not any more.
    fn keep_out_by(&mut self, matter: Matter, on: bool) {
        let scenario = self.scenario.clone();
        match matter {
            Matter::Ban(slot) => self.keep_out(slot, matter, on),
            // Whoever is no member yet is put out.
            Matter::Founded => {
                self.operator.closed = on;
                for role in &scenario.cast {
                    let member = Matter::Member(Person::Cast(role.member));
                    let is = |want: &Want| want.state == State::Settled && want.value.is_some();
                    let out = on && !self.operator.wants.get(&member).is_some_and(is);
                    self.keep_out(role.slot, member, out);
                }
            }
            Matter::Member(Person::Cast(member)) => {
                let out = !on && self.operator.closed;
                for role in scenario.cast.iter().filter(|role| role.member == member) {
                    self.keep_out(role.slot, matter, out);
                }
            }
            _ => {}
        }
    }

    fn keep_out(&mut self, slot: Slot, why: Matter, on: bool) {
        let whys = self.operator.out.entry(slot).or_default();
        let was = !whys.is_empty();
        _ = if on { whys.insert(why) } else { whys.remove(&why) };
        let is = !whys.is_empty();
        if was != is {
            self.see(&Seen::Banned(slot, is));
        }
    }

    /// The broker answers the operator.
    pub(crate) fn operated(&mut self, id: OperateId, outcome: Result<Operated, WireError>) {
        let Some(asked) = self.operator.asked.remove(&id) else { return };
        self.trace.line(self.t, format_args!("operator: {asked:?} {:?}", outcome.as_ref().err()));
        match (asked, outcome) {
            (Asked::Decision(matter, value), outcome) => self.decided(matter, value, outcome.err()),
            (Asked::Kick(slot), _) => self.keep_out(slot, Matter::Kick(slot), false),
            (Asked::Version, Ok(Operated::Settings { version, .. })) => self.set(version),
            (Asked::Version, _) => self.open_again(Matter::Settings),
            (Asked::Look { at_start }, Ok(found)) => self.found_out(at_start, &found),
            (Asked::Look { .. }, Err(_)) => {}
        }
    }

    /// The settings are at this version: those that shall be are asked for.
    fn set(&mut self, version: u64) {
        let Some(config) = self.operator.numbers.clone() else { return };
        let (mut values, base) = (setting::all(&config), setting::all(&self.broker.base));
        values.retain(|name, _| NUMBERS.contains(&name.as_str()));
        let value = numbers(&values);
        for (name, value) in &mut values {
            if base.get(name) == Some(value) {
                *value = Value::Null;
            }
        }
        self.decide(Matter::Settings, Some(value), Act::Set { version, values });
    }

    fn decided(&mut self, matter: Matter, value: Option<String>, error: Option<WireError>) {
        // What is there already, and not there any more, may be so in memory alone: the next start tells.
        let settled = match error.map(|error| error.code) {
            None => {
                self.see(&Seen::Decided(matter, value.clone()));
                true
            }
            Some(ErrorCode::NotFound) => true,
            Some(ErrorCode::Conflict) => matter == Matter::Founded,
            Some(_) => false,
        };
        let Some(want) = self.operator.wants.get_mut(&matter) else { return };
        match settled && want.value == value {
            true => want.state = State::Settled,
            false => self.open_again(matter),
        }
    }

    fn open_again(&mut self, matter: Matter) {
        if let Some(want) = self.operator.wants.get_mut(&matter) {
            want.state = State::Open;
        }
        let wait = self.operator.rng.between(300, 3_000);
        self.at(self.t + wait, Event::Operator);
    }

    /// What the operator found, and what of it is not as it shall be.
    fn found_out(&mut self, at_start: bool, found: &Operated) {
        let standing = self.standing(found);
        for (matter, value) in standing {
            if !self.operator.known.contains(&matter) {
                continue;
            }
            self.see(&Seen::Stands { matter, value: value.clone(), at_start });
            if !at_start {
                continue;
            }
            self.keep_out_by(matter, value.is_some());
            if let Some(want) = self.operator.wants.get_mut(&matter)
                && want.state == State::Open
                && want.value == value
            {
                want.state = State::Settled;
            }
        }
        if at_start && matches!(found, Operated::Settings { .. }) {
            self.operator_turn();
        }
    }

    /// How the matters stand that this tells of.
    fn standing(&self, found: &Operated) -> BTreeMap<Matter, Option<String>> {
        let mut standing = BTreeMap::new();
        let cast = &self.scenario.cast;
        match found {
            Operated::Overview(overview) => {
                standing.insert(Matter::Founded, overview.founded.map(|_| "yes".to_owned()));
            }
            Operated::Bans(bans, _) => {
                for role in cast {
                    let session = self.names.session_key(role.slot).map(Banned::Session);
                    let on = bans.iter().any(|ban| Some(ban.subject) == session);
                    standing.insert(Matter::Ban(role.slot), on.then(|| "banned".to_owned()));
                }
            }
            Operated::Members(members, _) => {
                let mut people: Vec<Person> = cast.iter().map(|role| Person::Cast(role.member)).collect();
                people.extend((0..crate::guest::GUESTS).map(Person::Guest));
                for person in people {
                    let key = self.key_of(person);
                    let record = members.iter().find(|record| Some(record.member) == key);
                    standing.insert(Matter::Member(person), record.map(standing_of));
                }
            }
            Operated::Invites(invites, _) => {
                for number in 0..crate::guest::INVITES {
                    let id = invite_id(number);
                    let record = invites.iter().find(|record| Some(&record.id) == id.as_ref());
                    let revoked = record.is_some_and(|record| record.revoked);
                    standing.insert(Matter::Revoked(number), revoked.then(|| "revoked".to_owned()));
                }
            }
            Operated::Settings { values, .. } => {
                standing.insert(Matter::Settings, Some(numbers(values)));
            }
            _ => {}
        }
        standing
    }
}

/// The numbers among `values`, in words.
pub(crate) fn numbers(values: &Values) -> String {
    let all = NUMBERS.iter().filter_map(|name| Some(format!("{name}={}", values.get(*name)?)));
    all.collect::<Vec<_>>().join(" ")
}

/// The name of the invite of this number.
pub(crate) fn invite_id(number: u8) -> Option<GrantId> {
    format!("invite-{number}").parse().ok()
}

/// What somebody may do who is on the roll like this.
fn standing_of(record: &MemberRecord) -> String {
    match &record.caps {
        None => ALL.to_owned(),
        Some(caps) => caps.iter().map(Cap::as_str).collect::<Vec<_>>().join(","),
    }
}

/// The caps that make this of a member.
pub(crate) fn caps_of(value: &str) -> Option<Vec<Cap>> {
    (value != ALL).then(|| value.split(',').filter_map(|cap| cap.parse().ok()).collect())
}
