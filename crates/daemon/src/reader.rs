//! What comes for one session: kept on this machine's disk, then settled at the broker, then shown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Received, SubEnd, Subscription};
use tenure_outbox::arrival::Recipient;
use tenure_outbox::intake;
use tenure_proto::name::TopicName;
use tokio_util::sync::CancellationToken;

use crate::sessions::Local;
use crate::shared::Shared;

/// How long to wait for a topic that cannot be read now.
const AGAIN: Duration = Duration::from_secs(1);

/// Starts to read everything that comes for `local`: its inbox, its member's if it is the daemon's own, and the topics
/// that it follows.
pub(crate) fn start(shared: &Arc<Shared>, local: &Arc<Local>) {
    let own = Recipient::Session(local.key);
    match local.client.inbox() {
        Ok(inbox) => spawn_inbox(shared, local, own, inbox),
        Err(error) => tracing::error!(event = "inbox_unread", session = %local.key, %error),
    }
    if local.own {
        match local.client.member_inbox() {
            Ok(inbox) => spawn_inbox(shared, local, Recipient::Member(local.member), inbox),
            Err(error) => tracing::error!(event = "inbox_unread", session = %local.key, %error),
        }
    }
    let (shared, local) = (Arc::clone(shared), Arc::clone(local));
    let tasks = shared.tasks.clone();
    tasks.spawn(topics(shared, local));
}

fn spawn_inbox(shared: &Arc<Shared>, local: &Arc<Local>, recipient: Recipient, inbox: Subscription) {
    let (shared, local) = (Arc::clone(shared), Arc::clone(local));
    let tasks = shared.tasks.clone();
    let until = local.leaving.clone();
    tasks.spawn(async move {
        let end = read(&shared, &local, recipient, inbox, &until).await;
        tracing::info!(event = "inbox_ended", session = %local.key, reason = ?end);
    });
}

/// Reads until the stream ends, or somebody says so.
async fn read(
    shared: &Shared,
    local: &Local,
    recipient: Recipient,
    mut stream: Subscription,
    until: &CancellationToken,
) -> Option<SubEnd> {
    loop {
        // Both are cancel-safe.
        let message = tokio::select! {
            message = stream.next_message() => message,
            () = until.cancelled() => return None,
        };
        match message {
            Ok(message) => keep(shared, local, recipient, message, until).await,
            Err(end) => return Some(end),
        }
    }
}

/// Keeps a message, then settles it, as `tenure_outbox::intake` says.
async fn keep(
    shared: &Shared,
    local: &Local,
    recipient: Recipient,
    message: Received,
    until: &CancellationToken,
) {
    let mut todo = intake::came(&recipient, &message);
    while let Some(ms) = todo.keep_after_ms {
        if ms > 0 {
            // Both are cancel-safe: they only wait.
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(ms)) => {}
                // Not settled: it comes again.
                () = until.cancelled() => return,
            }
        }
        let kept = shared.inbox.keep(local.mesh.clone(), recipient, &message, shared.clock.wall()).await;
        match &kept {
            Ok(Some(letter)) => shared.arrived.send_modify(|newest| *newest = letter.id.max(*newest)),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(event = "inbox_disk", %error, "the broker keeps what cannot be kept here")
            }
        }
        todo = intake::kept(kept.map(|letter| letter.is_some()));
    }
    if todo.settle {
        // It goes on by itself, and through any break; a repeat is kept once.
        drop(message.ack());
    }
}

/// Reads the topics that a session follows, as they change.
async fn topics(shared: Arc<Shared>, local: Arc<Local>) {
    let mut changed = local.topics_changed.subscribe();
    let mut reading: BTreeMap<(TopicName, String), CancellationToken> = BTreeMap::new();
    loop {
        changed.borrow_and_update();
        let wanted = local.topics();
        reading.retain(|(topic, group), token| {
            let keep = wanted.get(topic) == Some(group);
            if !keep {
                token.cancel();
            }
            keep
        });
        for (topic, group) in wanted {
            reading.entry((topic.clone(), group.clone())).or_insert_with(|| {
                let token = local.leaving.child_token();
                let one = topic_reader(Arc::clone(&shared), Arc::clone(&local), topic, group, token.clone());
                shared.tasks.spawn(one);
                token
            });
        }
        // Both are cancel-safe: a change that is not seen now is seen later.
        tokio::select! {
            changed = changed.changed() => if changed.is_err() { return },
            () = local.leaving.cancelled() => return,
        }
    }
}

/// Reads one topic until it is not followed any more, subscribing as often as it takes.
async fn topic_reader(
    shared: Arc<Shared>,
    local: Arc<Local>,
    topic: TopicName,
    group: String,
    until: CancellationToken,
) {
    let mut standing = local.standing.clone();
    loop {
        // Nobody is asked who cannot answer.
        // Both are cancel-safe: they only wait.
        let attached = tokio::select! {
            attached = standing.wait_for(|standing| standing.is_attached()) => attached.is_ok(),
            () = until.cancelled() => return,
        };
        if !attached {
            return;
        }
        let subscribe = local.client.subscribe(topic.as_str());
        // A visit's place ends with it.
        let subscribe = if local.visit.is_some() { subscribe } else { subscribe.group(&group) };
        match subscribe.await {
            Ok(stream) => {
                local.in_force.send_modify(|topics| _ = topics.insert(topic.clone()));
                let end = read(&shared, &local, Recipient::Session(local.key), stream, &until).await;
                local.in_force.send_modify(|topics| _ = topics.remove(&topic));
                let Some(end) = end else { return };
                tracing::info!(event = "topic_ended", %topic, reason = %end);
            }
            Err(end) => tracing::warn!(event = "topic_refused", %topic, reason = %end),
        }
        // Both are cancel-safe: they only wait.
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = until.cancelled() => return,
        }
    }
}
