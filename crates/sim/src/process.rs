//! A process: an SDK session around `tenure_link`, and the application on top of it.
//!
//! This file is the SDK's shell: it turns what the link asks for into what the network does, and back. What the
//! application does with it is in `app`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use serde::de::DeserializeOwned;
use tenure_kit::{Millis, Now};
use tenure_link::{
    CallHandle, DeliveryId, End, Link, LinkConfig, LinkEffect, LinkInput, OfferHandle, RequestNumber,
    ServedHandle, SettleNumber, SockId, SubHandle, Voucher,
};
use tenure_proto::WireError;
use tenure_proto::codec::Codec;
use tenure_proto::error::ErrorCode;
use tenure_proto::feature::FeatureWishes;
use tenure_proto::frame::Response;
use tenure_proto::hello::{ClientInfo, InboxChoice};
use tenure_proto::ids::RunId;
use tenure_proto::peer::Profile;

use crate::broker::HOST;
use crate::daemon::Job;
use crate::desk::Desk;
use crate::memo::Memo;
use crate::names::Names;
use crate::net::WireId;
use crate::rng::Rng;
use crate::runs::Serving;
use crate::scenario::Role;
use crate::seen::{Key, Lane, Letter, Life, Place, Seen, Spot, Verb};

/// What a process wants of the network.
#[derive(Debug)]
pub(crate) enum Wish {
    Dial(SockId),
    Send(SockId, Vec<u8>),
    Ping(SockId),
    Drop(SockId),
    /// The session is over.
    Ended(End),
    /// Something of the disk of its daemon.
    Disk(Job),
}

/// What a request of the application was.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Send(Key, Letter, /* contradicts */ bool),
    Status(crate::seen::Status),
    Topic(/* index */ usize),
    Look(crate::look::Look),
    /// What became of a message that is on its way.
    Fate(Key),
    Cancel,
}

/// A message in hand.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) place: Place,
    pub(crate) spot: Spot,
    pub(crate) lane: Lane,
    /// When the application is done with it, on the world's clock.
    pub(crate) due: u64,
}

/// What a response frame says.
pub(crate) fn answer<R: DeserializeOwned>(codec: Codec, frame: &[u8]) -> Result<R, WireError> {
    let garbled = || WireError::new(ErrorCode::Internal, "an answer that does not parse");
    let response: Response<R> = codec.decode(frame).map_err(|_| garbled())?;
    match (response.result, response.error) {
        (Some(result), _) if response.ok => Ok(result),
        (_, Some(error)) => Err(error),
        _ => Err(garbled()),
    }
}

/// One process.
pub(crate) struct Process {
    pub(crate) role: Role,
    pub(crate) life: Life,
    pub(crate) names: Rc<Names>,
    pub(crate) link: Link,
    /// The token that its last hello got: what a thief would steal.
    pub(crate) token: Option<String>,
    /// The last tags that it was given: what a liar would abuse.
    pub(crate) tags: VecDeque<String>,
    pub(crate) socks: BTreeMap<SockId, WireId>,
    pub(crate) rng: Rng,
    pub(crate) seen: Vec<Seen>,
    pub(crate) memo: Memo,
    pub(crate) asked: BTreeMap<RequestNumber, Asked>,
    pub(crate) receipts: BTreeMap<RequestNumber, Key>,
    pub(crate) subs: BTreeMap<SubHandle, Place>,
    pub(crate) hand: BTreeMap<DeliveryId, Work>,
    pub(crate) settling: BTreeMap<SettleNumber, (Place, Spot, Lane, Verb)>,
    /// When the application acts next, on the world's clock.
    pub(crate) act_at: u64,
    pub(crate) send_at: u64,
    /// Faults are over: it sends nothing new and settles everything.
    pub(crate) calm: bool,
    /// When it asks what became of a message, in worlds in which applications do.
    pub(crate) inquires: Option<Rng>,
    pub(crate) status: crate::seen::Status,
    /// The topics that are there, by their index.
    pub(crate) topics: BTreeSet<usize>,
    /// What it was refused for good since it was last attached: a topic that was made again may have fewer partitions.
    pub(crate) refused: BTreeSet<Place>,
    /// Whether it has begun to read them.
    pub(crate) reading: bool,
    /// Whether the broker may lose its topics: then they are made again with every new lease.
    pub(crate) wary: bool,
    pub(crate) ended: bool,
    pub(crate) looks: Vec<crate::look::Look>,
    /// Of a local session of a daemon, in place of an application.
    pub(crate) desk: Option<Desk>,
    /// Calls that have not ended, by their keys; those of which a piece was read, and those to be stopped.
    pub(crate) calls: BTreeMap<CallHandle, Key>,
    pub(crate) read_calls: Vec<CallHandle>,
    pub(crate) cancels: Vec<(Key, RunId)>,
    pub(crate) call_at: u64,
    /// Runs that it answers.
    pub(crate) served: BTreeMap<ServedHandle, Serving>,
    /// Services that it offers.
    pub(crate) offers: BTreeMap<OfferHandle, String>,
}

impl Process {
    pub(crate) fn new(
        role: &Role,
        life: Life,
        names: &Rc<Names>,
        memo: Memo,
        root: &Rng,
        (now, world): (Now, u64),
    ) -> Option<Process> {
        let mut rng = root.fork(10_000 + u64::from(life.slot.0) * 1_000 + u64::from(life.number));
        let member = names.member(role.member)?.clone();
        let instance_id = format!("i{}-{}", life.slot.0, life.number).parse().ok()?;
        let config = LinkConfig {
            mesh: "default".parse().ok()?,
            session_key: Box::new(names.session(role.slot)?.clone()),
            voucher: Voucher::MemberKey(Box::new(member), None),
            profile: Profile::named(format!("s{}", role.slot.0)),
            inbox: role.inbox,
            reconcile: role.policy,
            client: ClientInfo { name: "sim".into(), version: "0".into(), platform: None, instance_id },
            features: FeatureWishes::default(),
            codec: role.codec(),
            host: HOST.to_owned(),
            auth: None,
        };
        let (mut subs, mut seen) = (BTreeMap::new(), vec![Seen::Born(life)]);
        if matches!(role.inbox, InboxChoice::Session | InboxChoice::Both) {
            subs.insert(SubHandle::INBOX, Place::Inbox);
        }
        if matches!(role.inbox, InboxChoice::Member | InboxChoice::Both) {
            subs.insert(SubHandle::MEMBER, Place::MemberInbox);
            seen.push(Seen::Subscribes(life, Place::MemberInbox, true));
        }
        let link = Link::new(config, rng.next(), now);
        let mut process = Process {
            role: role.clone(),
            life,
            names: names.clone(),
            link,
            token: None,
            tags: VecDeque::new(),
            socks: BTreeMap::new(),
            seen,
            memo,
            asked: BTreeMap::new(),
            receipts: BTreeMap::new(),
            subs,
            hand: BTreeMap::new(),
            settling: BTreeMap::new(),
            act_at: world,
            send_at: world + rng.around(role.sends_every_ms.max(1)),
            calm: false,
            inquires: None,
            status: crate::seen::Status::Idle,
            topics: BTreeSet::new(),
            refused: BTreeSet::new(),
            reading: false,
            wary: false,
            ended: false,
            looks: Vec::new(),
            desk: None,
            calls: BTreeMap::new(),
            read_calls: Vec::new(),
            cancels: Vec::new(),
            call_at: world + 1_000,
            served: BTreeMap::new(),
            offers: BTreeMap::new(),
            rng,
        };
        if role.serves {
            process.link.serve_runs();
        }
        process.link.start(now);
        Some(process)
    }

    /// Lets the application begin: once, after it was made.
    pub(crate) fn begin(&mut self, now: Now, world: u64) -> Vec<Wish> {
        self.with(now, world, |process| process.open_shop(now))
    }

    /// A socket did something.
    pub(crate) fn input(&mut self, now: Now, world: u64, input: LinkInput) -> Vec<Wish> {
        self.with(now, world, |process| process.link.handle(now, input))
    }

    /// A deadline of the link has come.
    pub(crate) fn tick(&mut self, now: Now, world: u64) -> Vec<Wish> {
        self.with(now, world, |process| {
            process.link.tick(now);
            process.desk_turn(now, world);
        })
    }

    /// The application's turn.
    pub(crate) fn act(&mut self, now: Now, world: u64) -> Vec<Wish> {
        self.with(now, world, |process| process.app(now, world))
    }

    pub(crate) fn bye(&mut self, now: Now, world: u64) -> Vec<Wish> {
        self.seen.push(Seen::Bye(self.life));
        self.with(now, world, |process| process.link.bye(now))
    }

    /// Its session, as the wire spells it.
    pub(crate) fn link_session(&self) -> String {
        self.names.session_key(self.role.slot).map(|key| key.to_string()).unwrap_or_default()
    }

    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        let desk = self.desk.as_ref().and_then(|desk| desk.drain.next_deadline());
        [self.link.next_deadline(), desk].into_iter().flatten().min()
    }

    /// One turn: `act`, then everything that the link asks for, then what leaves together at its end.
    pub(crate) fn with(&mut self, now: Now, world: u64, act: impl FnOnce(&mut Process)) -> Vec<Wish> {
        let mut wishes = Vec::new();
        act(self);
        let mut flushed = false;
        loop {
            let effects: Vec<_> = std::iter::from_fn(|| self.link.poll_effect()).collect();
            if effects.is_empty() {
                if flushed {
                    // Before anything else: a session that is over still says its last words.
                    let jobs = self.desk.as_mut().map(|desk| std::mem::take(&mut desk.jobs));
                    return jobs.into_iter().flatten().map(Wish::Disk).chain(wishes).collect();
                }
                flushed = true;
                self.link.flush(now);
                continue;
            }
            let ending = effects.iter().any(|effect| matches!(effect, LinkEffect::Ended(_)));
            for effect in effects {
                match effect {
                    LinkEffect::Dial(sock) => wishes.push(Wish::Dial(sock)),
                    LinkEffect::Send(sock, bytes) => wishes.push(Wish::Send(sock, bytes)),
                    LinkEffect::Ping(sock) => wishes.push(Wish::Ping(sock)),
                    LinkEffect::Drop(sock) => wishes.push(Wish::Drop(sock)),
                    LinkEffect::Ended(end) => {
                        self.ended = true;
                        let word = match &end {
                            End::Bye => "bye".to_owned(),
                            End::Replaced { .. } => "replaced".to_owned(),
                            End::Stopped { reason, .. } => format!("stopped:{reason}"),
                        };
                        self.seen.push(Seen::Ended(self.life, word));
                        wishes.push(Wish::Ended(end));
                    }
                    effect => {
                        flushed = false;
                        self.hear(now, world, effect, ending);
                    }
                }
            }
        }
    }
}
