//! A service: a leased name for something that a session can answer.
//!
//! What it is for: the rules of one name. What may be offered ([`check`]), when it is stale ([`Slot::stale_since`]),
//! and what watchers of the map are told ([`Delta`]).
//!
//! What it promises: a name hangs off its session's lease. A socket that breaks, a renewal that does not come, make it
//! *stale*: marked, held, never offered without waiting. It is free when the lease ends, when its session gives it up, or when
//! its session is here, shows that it lives, and still does not renew it ([`Slot::lapse`]). Only the broker's clock counts.
//!
//! What it never does: know who else there is. That a name has one holder is the mesh's.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::limits::{
    SERVICE_DESCRIPTION_BYTES, SERVICE_OVERDUE_MS, SERVICE_OWNER_BYTES, SERVICE_PROOF_MS,
    SERVICE_STALE_TOLD_MS, SERVICE_TAG_BYTES, SERVICE_TAGS, SERVICE_TTL_MS,
};
use tenure_proto::name::{NAME_RULE, ServiceName};
use tenure_proto::service::{
    Service, ServiceEventKind, ServiceKind, ServiceMetadata, ServiceOffer, ServiceState,
};
use tenure_proto::text::check_shown;

use crate::config::MeshConfig;
use crate::services::route::RouteKey;
use crate::sessions::feed::{Feed, Turn};

/// Bytes of a label of a host name.
const LABEL_BYTES: usize = 63;

/// What a service is, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// How it is spoken to.
    pub kind: ServiceKind,
    /// How long without renewal until it is stale.
    pub ttl_ms: u64,
    /// What its publisher says of it.
    pub metadata: ServiceMetadata,
}

/// What an offer comes to under the rules in force: its name and what it is, or why not.
pub fn check(offer: &ServiceOffer, config: &MeshConfig) -> Result<(ServiceName, Facts), WireError> {
    let name = check_name(&offer.name, offer.kind, config)?;
    let ttl_ms = offer.ttl_ms.map_or(SERVICE_TTL_MS, |ttl| ttl.get());
    // Who says nothing takes what is nearest to the default.
    let ttl_ms = match offer.ttl_ms {
        None => ttl_ms.clamp(config.service_ttl_min_ms, config.service_ttl_max_ms),
        Some(_) => ttl_ms,
    };
    if !(config.service_ttl_min_ms..=config.service_ttl_max_ms).contains(&ttl_ms) {
        let text = format!(
            "ttlMs must be between {} and {} here",
            config.service_ttl_min_ms, config.service_ttl_max_ms
        );
        return Err(WireError::new(ErrorCode::TtlOutOfBounds, text));
    }
    check_metadata(&offer.metadata)?;
    Ok((name, Facts { kind: offer.kind, ttl_ms, metadata: offer.metadata.clone() }))
}

/// Whether what is held may still be, under the rules in force now.
pub fn may_stay(name: &ServiceName, facts: &Facts, config: &MeshConfig) -> bool {
    let bounds = config.service_ttl_min_ms..=config.service_ttl_max_ms;
    check_name(name.as_str(), facts.kind, config).is_ok() && bounds.contains(&facts.ttl_ms)
}

fn check_name(text: &str, kind: ServiceKind, config: &MeshConfig) -> Result<ServiceName, WireError> {
    let refuse = |text: String| Err(WireError::new(ErrorCode::NameRejected, text));
    let Ok(name) = text.parse::<ServiceName>() else {
        return refuse(match text.to_ascii_lowercase().parse::<ServiceName>() {
            Ok(lower) => format!("a service's name is lower-case: offer it as {lower}"),
            Err(_) => NAME_RULE.to_owned(),
        });
    };
    let labels = || name.as_str().split('.');
    // So that no name looks like another with something behind it.
    if labels().any(|label| label.is_empty() || label.starts_with('-') || label.ends_with('-')) {
        return refuse(
            "between its dots a service's name has something that neither begins nor ends with '-'"
                .to_owned(),
        );
    }
    if kind == ServiceKind::Http && labels().any(|label| label.len() > LABEL_BYTES) {
        return refuse(format!(
            "an http service is reached by its name as a host: between dots it has at most {LABEL_BYTES} characters"
        ));
    }
    if let Some(glob) = config.service_names.as_ref().filter(|glob| !matches(glob, name.as_str())) {
        return refuse(format!("this mesh takes names like {glob} only"));
    }
    if let Some(pattern) = config.service_pattern.as_ref().filter(|pattern| !pattern.fits(name.as_str())) {
        return refuse(format!("this mesh takes only names that fit the regular expression {pattern}"));
    }
    Ok(name)
}

/// Whether `pattern`, in which `*` stands for any characters and `?` for one, fits all of `text`.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    // Where the last star was, and how much of the text it stands for so far.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(b) if *b == b'?' || *b == text[t] => (p, t) = (p + 1, t + 1),
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, t) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

fn check_metadata(metadata: &ServiceMetadata) -> Result<(), WireError> {
    let ServiceMetadata { description, tags, owner, hide: _ } = metadata;
    let plain = |what: &str, text: &str, bytes: usize| {
        if text.len() > bytes {
            return Err(WireError::bad_request(format!("metadata.{what} is at most {bytes} bytes")));
        }
        check_shown(&format!("metadata.{what}"), text)
    };
    plain("description", description.as_deref().unwrap_or_default(), SERVICE_DESCRIPTION_BYTES)?;
    plain("owner", owner.as_deref().unwrap_or_default(), SERVICE_OWNER_BYTES)?;
    if tags.len() > SERVICE_TAGS {
        return Err(WireError::bad_request(format!("a service has at most {SERVICE_TAGS} tags")));
    }
    tags.iter().try_for_each(|tag| plain("tags", tag, SERVICE_TAG_BYTES))
}

/// A name that is held, or about to be.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Its number: another when the name is taken again.
    pub id: u64,
    /// Who holds it.
    pub session: SessionKey,
    /// Who vouches for that session.
    pub member: MemberKey,
    /// What it is according to the disk; until there is something, it is nobody's business but its session's.
    pub facts: Option<Facts>,
    /// What the disk was last asked to have; nothing when it was asked to forget.
    pub wanted: Option<Facts>,
    /// How many of those writes are on their way.
    pub writes: u32,
    /// Whether its local target fails the probe. Not kept: the next renewal says so again.
    pub degraded: bool,
    /// When its session took it, Unix milliseconds.
    pub since: u64,
    /// When it was last renewed, Unix milliseconds; nothing if that was before the broker's start.
    pub renewed_at: Option<u64>,
    /// When it was last renewed.
    pub renewed: Millis,
    /// When its session was last attached.
    attached: Millis,
    /// How far it is on its way to its end.
    overdue: Overdue,
    /// Since when its session has no socket.
    pub lost: Option<Millis>,
    /// Whether watchers were told that it is stale.
    pub stale_told: bool,
    /// Whether somebody who asked was shown that it is stale: then its return must be told.
    pub stale_shown: bool,
    /// Streams towards it that are open.
    pub open: usize,
    /// Those that wait for it.
    pub waiting: BTreeSet<RouteKey>,
}

/// How far a service that is not renewed is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overdue {
    /// It is not overdue, or that was not noticed yet.
    No,
    /// It is, and its session has not shown since then that it lives.
    Unproven,
    /// Its session has, at this moment for the first time.
    Proven(Millis),
}

/// What becomes of a service whose session is here and does not renew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// Nothing yet.
    No,
    /// It is overdue: the next proof of life of its session begins its last seconds.
    Waits,
    /// Its time is over.
    Over,
}

impl Slot {
    /// A name that `session` wants; `since` is now on the wall clock.
    pub fn new(id: u64, session: SessionKey, member: MemberKey, now: Millis, since: u64) -> Slot {
        Slot {
            id,
            session,
            member,
            facts: None,
            wanted: None,
            writes: 0,
            degraded: false,
            since,
            renewed_at: None,
            renewed: now,
            attached: now,
            overdue: Overdue::No,
            lost: None,
            stale_told: false,
            stale_shown: false,
            open: 0,
            waiting: BTreeSet::new(),
        }
    }

    /// Whether the disk is being asked to forget it.
    pub fn is_leaving(&self) -> bool {
        self.wanted.is_none() && self.writes > 0
    }

    fn ttl_ms(&self) -> u64 {
        self.facts.as_ref().or(self.wanted.as_ref()).map_or(0, |facts| facts.ttl_ms)
    }

    /// From when on it is stale, if nothing more is heard.
    pub fn stale_since(&self) -> Millis {
        let unrenewed = self.renewed.plus(self.ttl_ms());
        self.lost.map_or(unrenewed, |lost| lost.min(unrenewed))
    }

    /// Whether it can be reached.
    pub fn state(&self, now: Millis) -> ServiceState {
        if now >= self.stale_since() { ServiceState::Stale } else { ServiceState::Online }
    }

    /// When watchers are to be told that it is stale; never twice.
    pub fn told_due(&self) -> Option<Millis> {
        (!self.stale_told).then(|| self.stale_since().plus(SERVICE_STALE_TOLD_MS))
    }

    /// From when on it is overdue: twice its TTL, and at least a minute, after its last renewal or its session's last attach.
    fn overdue_at(&self) -> Millis {
        let patience_ms = self.ttl_ms().saturating_mul(2).max(SERVICE_OVERDUE_MS);
        self.renewed.max(self.attached).plus(patience_ms)
    }

    /// What becomes of it now, while a socket carries its session.
    pub fn lapse(&mut self, now: Millis) -> Lapse {
        match self.overdue {
            Overdue::No if now < self.overdue_at() => Lapse::No,
            Overdue::No | Overdue::Unproven => {
                self.overdue = Overdue::Unproven;
                Lapse::Waits
            }
            Overdue::Proven(at) if now < at.plus(SERVICE_PROOF_MS) => Lapse::No,
            Overdue::Proven(_) => Lapse::Over,
        }
    }

    /// Its session has shown at this moment that it lives; whether it still waits for that.
    pub fn proven(&mut self, at: Millis) -> bool {
        if self.overdue == Overdue::Unproven && at > self.overdue_at() {
            self.overdue = Overdue::Proven(at);
        }
        self.overdue == Overdue::Unproven
    }

    /// Its end came to nothing: it is tried again after the same time.
    pub fn lapse_again(&mut self, now: Millis) {
        self.overdue = Overdue::Proven(now);
    }

    /// A socket carries its session: the time until its end begins anew.
    pub fn attach(&mut self, now: Millis) {
        (self.attached, self.overdue) = (now, Overdue::No);
    }

    /// When it ends at the earliest if it is not renewed, while a socket carries its session.
    pub fn ends_at(&self) -> Millis {
        let proof = match self.overdue {
            Overdue::Proven(at) => at,
            Overdue::No | Overdue::Unproven => self.overdue_at(),
        };
        proof.plus(SERVICE_PROOF_MS)
    }

    /// When it must be looked at: to tell that it is stale, to see that it is overdue, to end it.
    pub fn due(&self) -> Option<Millis> {
        let end = match self.overdue {
            Overdue::No => Some(self.overdue_at()),
            Overdue::Unproven => None,
            Overdue::Proven(_) => Some(self.ends_at()),
        };
        self.told_due().into_iter().chain(end).min()
    }

    /// It can be reached again, or still; `wall` is now on the wall clock. Whether that is news to somebody.
    pub fn renew(&mut self, now: Millis, wall: u64) -> bool {
        (self.renewed, self.lost, self.overdue) = (now, None, Overdue::No);
        self.renewed_at = Some(wall);
        std::mem::take(&mut self.stale_told) | std::mem::take(&mut self.stale_shown)
    }

    /// Streams towards it, open or waiting.
    pub fn streams(&self) -> usize {
        self.open + self.waiting.len()
    }

    /// As others see it, if they may.
    pub fn view(&self, name: &ServiceName, state: ServiceState) -> Option<Service> {
        let Facts { kind, metadata, .. } = self.facts.as_ref()?;
        Some(Service {
            name: name.clone(),
            kind: *kind,
            state,
            degraded: self.degraded,
            session: self.session,
            member: self.member,
            metadata: metadata.clone(),
            first_seen_at: None,
            last_renewed_at: None,
            expires_at: None,
        })
    }
}

/// Bytes of a service in a list, about.
pub fn weight(service: &Service) -> usize {
    let ServiceMetadata { description, tags, owner, .. } = &service.metadata;
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let tags: usize = tags.iter().map(|tag| tag.len() + 3).sum();
    320 + service.name.as_str().len() + text(description) + text(owner) + tags
}

/// What watchers were last told of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The service as they were told.
    pub service: Arc<Service>,
    /// What became of it then.
    pub kind: ServiceEventKind,
}

/// One step of the map, ready to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What became of it.
    pub kind: ServiceEventKind,
    /// The service.
    pub service: Arc<Service>,
    /// The version after it.
    pub version: u64,
}

/// What a watcher at `base` has not seen, up to `version`; shared by all watchers at that base.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// The cursor it starts from.
    pub base: u64,
    /// The cursor after it.
    pub version: u64,
    /// The steps in order; the last brings the map to `version`.
    pub steps: Vec<Step>,
}

/// How a cursor catches up.
#[derive(Clone, Debug, PartialEq)]
pub enum Catchup {
    /// By these steps.
    Delta(Arc<Delta>),
    /// Not by steps: it must read the map again, which is now at this version.
    Resync(u64),
}

/// What a watcher of `feed` at `cursor` sees next.
pub fn catch_up(feed: &Feed<ServiceName, Told>, cursor: u64) -> Catchup {
    let Some(steps) = feed.after(cursor) else { return Catchup::Resync(feed.version()) };
    let step = |(version, turn, told): (u64, Turn, &Told)| {
        let kind = match (turn, told.service.state) {
            (Turn::Came, ServiceState::Online) => ServiceEventKind::Online,
            (Turn::Came, ServiceState::Stale) => ServiceEventKind::Stale,
            (Turn::Changed, _) => told.kind,
            (Turn::Went, _) => ServiceEventKind::Gone,
        };
        Step { kind, service: told.service.clone(), version }
    };
    let steps: Vec<Step> = steps.into_iter().map(step).collect();
    let version = steps.last().map_or(cursor, |step| step.version);
    Catchup::Delta(Arc::new(Delta { base: cursor, version, steps }))
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
