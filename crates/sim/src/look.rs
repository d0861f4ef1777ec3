//! The last look: what an operator finds over the wire when everything has come to rest.

use std::collections::BTreeSet;

use tenure_kit::Now;
use tenure_proto::WireError;
use tenure_proto::dead::{DeadListParams, DeadListResult};
use tenure_proto::ids::RunId;
use tenure_proto::message::{HistoryParams, HistoryResult, SendState, SendStatusParams, SendStatusResult};
use tenure_proto::method::{Method, PresenceListParams, PresenceListResult};
use tenure_proto::number::U53;
use tenure_proto::run::{RunGetResult, RunIdParams, RunState};
use tenure_proto::service::{ServiceState, ServicesListParams, ServicesListResult};

use crate::process::{Asked, Process, answer};
use crate::seen::{DeadLetter, Fate, Key, RunFate, Seen, Spot};

/// How long a look may take.
const LOOK_MS: u64 = 60_000;

/// A question of the last look, with what was found so far.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    /// What became of these ids.
    Fates(Vec<String>),
    /// What is in a log, from here on.
    History(String, u64),
    /// The dead letters of a log, after this.
    Dead(String, u64, Vec<DeadLetter>),
    /// How a run stands that was begun under this key.
    Run(String, RunId),
    /// What is offered; there are few.
    Services,
    /// Who is here, after this one.
    Present(Option<tenure_proto::ids::SessionKey>, BTreeSet<String>),
}

impl Process {
    /// Asks everything in turn.
    pub(crate) fn look_on(&mut self, now: Now) {
        let Some(look) = self.looks.pop() else { return };
        let (link, timeout) = (&mut self.link, LOOK_MS);
        let limit = Some(U53::saturating(200));
        let asked = match &look {
            Look::Fates(ids) => {
                let client_message_ids = ids.iter().filter_map(|id| id.parse().ok()).collect();
                let params = SendStatusParams { client_message_ids };
                link.request(now, Method::SendStatus, &params, timeout)
            }
            Look::History(log, from) => {
                let params = HistoryParams { log: log.clone(), from: Some(U53::saturating(*from)), limit };
                link.request(now, Method::History, &params, timeout)
            }
            Look::Dead(log, after, _) => {
                let params = DeadListParams { log: log.clone(), after: Some(U53::saturating(*after)), limit };
                link.request(now, Method::DeadList, &params, timeout)
            }
            Look::Run(_, run_id) => {
                let params = RunIdParams { run_id: *run_id };
                link.request(now, Method::RunGet, &params, timeout)
            }
            Look::Services => {
                let params = ServicesListParams { all: true, ..ServicesListParams::default() };
                link.request(now, Method::ServicesList, &params, timeout)
            }
            Look::Present(after, _) => {
                let params = PresenceListParams { after: *after, ..PresenceListParams::default() };
                link.request(now, Method::PresenceList, &params, timeout)
            }
        };
        match asked {
            Ok(number) => _ = self.asked.insert(number, Asked::Look(look)),
            Err(_) => self.looks.push(look),
        }
    }

    /// An answer to a look; what is left of it is asked next. One that failed is asked again.
    pub(crate) fn looked(&mut self, look: Look, outcome: Result<Vec<u8>, WireError>) {
        let codec = self.role.codec();
        let Ok(frame) = outcome else {
            self.looks.push(look);
            return;
        };
        match look {
            Look::Fates(ids) => match answer::<SendStatusResult>(codec, &frame).ok() {
                Some(result) => {
                    for status in result.statuses {
                        let key = Key { member: self.role.member, id: status.client_message_id.to_string() };
                        let fate = fate(status.state);
                        self.seen.push(Seen::Fate(key, status.id.map(|id| id.to_string()), fate));
                    }
                }
                None => self.looks.push(Look::Fates(ids)),
            },
            Look::History(log, from) => match answer::<HistoryResult>(codec, &frame) {
                Ok(result) => {
                    let entries = result.messages.into_iter().map(|message| {
                        (message.seq.get(), message.id.to_string(), message.body.unwrap_or_default())
                    });
                    self.seen.push(Seen::History(log.clone(), from, entries.collect()));
                    if let Some(next) = result.next {
                        self.looks.push(Look::History(log, next.get()));
                    }
                }
                Err(error) if error.retryable => self.looks.push(Look::History(log, from)),
                // Nobody ever sent to it.
                Err(_) => self.seen.push(Seen::History(log, from, Vec::new())),
            },
            Look::Dead(log, after, mut found) => match answer::<DeadListResult>(codec, &frame) {
                Ok(result) => {
                    found.extend(result.letters.into_iter().map(|letter| DeadLetter {
                        spot: Spot {
                            log: letter.message.log.clone(),
                            seq: letter.message.seq.get(),
                            id: letter.message.id.to_string(),
                        },
                        group: letter.group.map(|group| group.to_string()),
                        attempts: letter.attempts,
                        reason: letter.reason,
                    }));
                    match result.next {
                        Some(next) => self.looks.push(Look::Dead(log, next.get(), found)),
                        None => self.seen.push(Seen::DeadLetters(log, found)),
                    }
                }
                Err(error) if error.retryable => self.looks.push(Look::Dead(log, after, found)),
                Err(_) => self.seen.push(Seen::DeadLetters(log, found)),
            },
            Look::Run(id, run) => {
                let key = Key { member: self.role.member, id: id.clone() };
                match answer::<RunGetResult>(codec, &frame) {
                    Ok(result) => self.seen.push(Seen::RunIs(key, stands(&result))),
                    Err(error) if error.retryable => self.looks.push(Look::Run(id, run)),
                    Err(error) => {
                        let code = error.code.as_str().to_owned();
                        self.seen.push(Seen::RunIs(key, RunFate::Refused(code)));
                    }
                }
            }
            Look::Services => match answer::<ServicesListResult>(codec, &frame).ok() {
                Some(result) => {
                    let found = result.services.iter().map(|service| {
                        let online = service.state == ServiceState::Online;
                        (service.name.to_string(), service.session.to_string(), online)
                    });
                    self.seen.push(Seen::Services(self.life, found.collect()));
                }
                None => self.looks.push(Look::Services),
            },
            Look::Present(after, mut found) => match answer::<PresenceListResult>(codec, &frame).ok() {
                Some(result) => {
                    found.extend(result.peers.iter().map(|peer| peer.get().session.to_string()));
                    match result.next {
                        Some(next) => self.looks.push(Look::Present(Some(next), found)),
                        None => self.seen.push(Seen::Present(self.life, found)),
                    }
                }
                None => self.looks.push(Look::Present(after, found)),
            },
        }
    }
}

/// What `send.status` says.
pub(crate) fn fate(state: SendState) -> Fate {
    match state {
        SendState::Accepted => Fate::Accepted,
        SendState::Delivered => Fate::Delivered,
        SendState::Dead => Fate::Dead,
        SendState::Expired => Fate::Expired,
        SendState::Unknown => Fate::Unknown,
    }
}

/// How a run stands.
fn stands(result: &RunGetResult) -> RunFate {
    match result.state {
        RunState::Queued => RunFate::Living("queued".to_owned()),
        RunState::Running => RunFate::Living("running".to_owned()),
        RunState::Ok => {
            let told = result.result.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default();
            RunFate::Ok(told.to_owned())
        }
        RunState::Error => {
            RunFate::Error(result.error.as_ref().map_or("", |error| error.code.as_str()).to_owned())
        }
        RunState::Cancelled => RunFate::Cancelled,
    }
}
