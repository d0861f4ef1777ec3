//! What operators look at. Each look is a page, made at once from what is in memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::SessionKey;

use crate::Mesh;
use crate::access::admin::{Act, LIST_PAGE, Operated, Overview, Page, SessionInfo};
use crate::access::setting;
use crate::sessions::lease::Lease;

impl Mesh {
    /// Answers what only looks.
    pub(crate) fn listed(&self, act: &Act) -> Result<Operated, WireError> {
        Ok(match act {
            Act::Overview => Operated::Overview(self.overview()),
            Act::Sessions(page) => {
                let mut shown = self.sessions.after(after(&page.after));
                let infos = shown.by_ref().filter_map(|(key, lease)| self.session_info(key, lease));
                let sessions = infos.take(limit(page)).collect();
                Operated::Sessions(sessions, shown.next().is_some())
            }
            Act::Session(session) => {
                self.known(session)?;
                let info = self.sessions.lease(session).and_then(|lease| self.session_info(session, lease));
                let gone = || WireError::new(ErrorCode::NoSuchSession, "this session is only just arriving");
                Operated::Session(Box::new(info.ok_or_else(gone)?))
            }
            Act::Members(page) => paged(&self.access.roll.members, page, Operated::Members),
            Act::Invites(page) => paged(&self.access.roll.invites, page, Operated::Invites),
            Act::Tokens(page) => paged(&self.access.roll.tokens, page, Operated::Tokens),
            Act::Bans(page) => {
                let mut rows = self.access.bans.after(page.after).cloned();
                let bans = rows.by_ref().take(limit(page)).collect();
                Operated::Bans(bans, rows.next().is_some())
            }
            Act::Settings => self.settings_shown(),
            // Everything else is not a look.
            _ => return Err(WireError::new(ErrorCode::Internal, "this is not a look")),
        })
    }

    fn overview(&self) -> Overview {
        Overview {
            founded: self.access.roll.founded,
            sessions: self.sessions.len(),
            online: self.sessions.online(),
            members: self.access.roll.members.len(),
            topics: self.messages.topics(),
            runs: self.runs(),
            bans: self.access.bans.len(),
            draining: self.is_draining(),
        }
    }

    /// The settings as they are, and which of them somebody has set.
    pub(crate) fn settings_shown(&self) -> Operated {
        let config = self.with_settings(&self.settings.values).unwrap_or_else(|_| self.config.clone());
        let changed = self.settings.values.keys().cloned().collect();
        Operated::Settings { version: self.settings.version, values: setting::all(&config), changed }
    }

    /// A session as an operator sees it; nothing while the store is only being told of it.
    fn session_info(&self, session: &SessionKey, lease: &Lease) -> Option<SessionInfo> {
        let peer = self.sessions.presence().get(session)?;
        Some(SessionInfo {
            peer: self.debugged(self.clock.now(), peer.get()),
            from: lease.from,
            rights: lease.may,
            subscriptions: lease.subs.asked_for(),
            in_hand: lease.subs.iter().map(|(_, sub)| sub.in_hand()).sum(),
        })
    }
}

fn after<T: Clone>(after: &Option<T>) -> Bound<T> {
    after.clone().map_or(Bound::Unbounded, Bound::Excluded)
}

fn limit<T>(page: &Page<T>) -> usize {
    page.limit.clamp(1, LIST_PAGE)
}

fn paged<K: Ord + Clone, V: Clone>(
    rows: &BTreeMap<K, V>,
    page: &Page<K>,
    answer: impl FnOnce(Vec<V>, bool) -> Operated,
) -> Operated {
    let mut rows = rows.range((after(&page.after), Bound::Unbounded)).map(|(_, row)| row.clone());
    let shown = rows.by_ref().take(limit(page)).collect();
    answer(shown, rows.next().is_some())
}
