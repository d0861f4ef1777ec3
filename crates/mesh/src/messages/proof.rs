//! Proving tags: a tag settles only the message that it came with.
//!
//! Of what was handed out in this run the ends of the ids are in memory. Of what was handed out before a start they are not:
//! a call that settles such an entry, or says that it is in hand, waits until the store has told which message is there.
//! What comes on its socket meanwhile waits behind it: requests of one socket take effect in the order of their arrival.

use std::collections::VecDeque;

use tenure_proto::ids::{ConnId, MessageId, RequestId, SessionKey, Tag};
use tenure_proto::log::LogName;
use tenure_proto::tag::TagParts;

use crate::Mesh;
use crate::input::Call;
use crate::messages::reads::Purpose;
use crate::reply::Caller;
use crate::store::pending::unreadable;
use crate::store::record::{GroupId, StoreRead};

/// A call that waits until the store has told which messages its tags are of.
#[derive(Debug)]
pub(crate) struct Proof {
    caller: Caller,
    call: Box<Call>,
    places: Vec<(LogName, u64)>,
}

/// What came on a socket behind a call that waits.
#[derive(Debug)]
pub(crate) enum Behind {
    /// A request; at most `MAX_INFLIGHT` of a socket, as its shell sees to.
    Call(RequestId, Call),
    /// Its end.
    Closed,
}

impl Mesh {
    /// The places of tags of `session` that would take effect on messages which are not in memory.
    pub(crate) fn unproven<'a>(
        &self,
        session: &SessionKey,
        tags: impl Iterator<Item = &'a Tag>,
    ) -> Vec<(LogName, u64)> {
        let place = |tag: &Tag| {
            let parts = TagParts::parse(tag.as_str()).filter(|parts| parts.session == *session)?;
            let id = GroupId(parts.group);
            let log = &self.messages.readings.get(&id)?.record.log;
            self.messages.wants_proof(id, &parts).then(|| (log.clone(), parts.seq))
        };
        let mut places: Vec<_> = tags.filter_map(place).collect();
        places.sort();
        places.dedup();
        places
    }

    /// Gives a call back whose tags can be judged now; another waits for the store.
    pub(crate) fn prove(&mut self, caller: &Caller, call: Call) -> Option<Call> {
        let session = caller.session;
        let places = match &call {
            Call::Ack(params) | Call::Progress(params) => self.unproven(&session, params.tags.iter()),
            Call::Nack(params) => self.unproven(&session, params.tags.iter()),
            Call::Reconcile(params) => {
                self.unproven(&session, params.inflight.iter().map(|listed| &listed.tag))
            }
            _ => return Some(call),
        };
        if places.is_empty() {
            return Some(call);
        }
        let proof = Proof { caller: caller.clone(), call: Box::new(call), places: places.clone() };
        self.read(Purpose::Prove(Box::new(proof)), StoreRead::Ids { places });
        self.messages.proving.insert(caller.conn, VecDeque::new());
        None
    }

    /// Lets what came on a socket wait if a call before it does; gives it back otherwise.
    pub(crate) fn wait_behind(&mut self, conn: ConnId, behind: Behind) -> Option<Behind> {
        match self.messages.proving.get_mut(&conn) {
            Some(waiting) => {
                waiting.push_back(behind);
                None
            }
            None => Some(behind),
        }
    }

    /// The store has told which messages are at the places of a call's tags, or cannot read now.
    pub(crate) fn proved(&mut self, proof: Proof, found: Option<Vec<Option<MessageId>>>) {
        let Proof { caller, call, places } = proof;
        let (conn, session) = (caller.conn, caller.session);
        let behind = self.messages.proving.remove(&conn).unwrap_or_default();
        if self.sessions.carried_by(conn) != Some(session) {
            return;
        }
        match found {
            Some(found) => {
                let proven = places.into_iter().zip(found).filter_map(|(place, id)| Some((place, id?)));
                self.messages.proven = proven.collect();
                self.dispatch(self.clock.now(), caller, *call);
                self.messages.proven.clear();
            }
            None => self.answer(caller.reply_to(), Err(unreadable())),
        }
        for behind in behind {
            // One of these may wait in its turn.
            match self.wait_behind(conn, behind) {
                Some(Behind::Call(request, call)) => self.call(self.clock.now(), conn, request, call),
                Some(Behind::Closed) => self.closed(conn, "closed"),
                None => {}
            }
        }
    }
}
