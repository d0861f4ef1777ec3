//! Many sessions within the test, each with its mirror of presence and a memory of what it went through.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tenure_client::proto::SessionKey;
use tenure_client::proto::event::EventBody;
use tenure_client::proto::hello::{LeaseFate, ResumeOutcome};
use tenure_client::proto::number::U53;
use tenure_client::{PeerMap, Session, SessionEvent};
use tokio::sync::mpsc;

use super::{join, patience};

/// What one session of the fleet went through.
#[derive(Default)]
pub(crate) struct Member {
    map: PeerMap,
    /// What each attach said.
    pub(crate) attaches: Vec<(LeaseFate, ResumeOutcome)>,
    /// What it was told of whom, in words.
    pub(crate) presence: Vec<String>,
}

impl Member {
    /// Who is here and since when.
    pub(crate) fn view(&self) -> BTreeMap<SessionKey, U53> {
        self.map.peers().map(|peer| (peer.get().session, peer.get().joined_at)).collect()
    }
}

/// Many sessions. They say goodbye when it is dropped.
pub(crate) struct Fleet {
    sessions: Vec<Session>,
    pub(crate) members: Vec<Member>,
    events: mpsc::UnboundedReceiver<(usize, SessionEvent)>,
}

impl Fleet {
    /// `count` sessions that are all in.
    pub(crate) async fn join(addr: SocketAddr, count: usize) -> Fleet {
        let (told, events) = mpsc::unbounded_channel();
        let mut sessions = Vec::new();
        for index in 0..count {
            let (session, mut events) = Box::pin(join(addr, &format!("fleet-{index}"))).await;
            sessions.push(session);
            let told = told.clone();
            tokio::spawn(async move {
                while let Ok(event) = events.next().await {
                    if told.send((index, event)).is_err() {
                        return;
                    }
                }
            });
        }
        Fleet { sessions, members: (0..count).map(|_| Member::default()).collect(), events }
    }

    /// Listens until every session is like this.
    pub(crate) async fn until(&mut self, what: &str, is: impl Fn(&Member) -> bool) {
        let all = tokio::time::timeout(patience(), async {
            while !self.members.iter().all(&is) {
                let Some((index, event)) = self.events.recv().await else { return };
                self.members[index].hear(&event);
            }
        });
        let came = all.await.is_ok();
        let behind = self.members.iter().filter(|member| !is(member)).count();
        assert!(came && behind == 0, "{behind} sessions waited in vain for {what}");
    }
}

impl Member {
    fn hear(&mut self, event: &SessionEvent) {
        self.map.apply(event);
        match event {
            SessionEvent::Attached(hello) => self.attaches.push((hello.lease, hello.resume.outcome)),
            SessionEvent::Event { body, .. } => {
                if let EventBody::Presence(step) = body.as_ref() {
                    self.presence.push(format!("{} {}", step.kind.as_str(), step.peer.get().name));
                }
            }
            _ => {}
        }
    }
}
