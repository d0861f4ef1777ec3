//! `tenure peers`: who is here, once or live.

use clap::Args as ClapArgs;
use serde_json::json;
use tenure_client::proto::event::PresenceKind;
use tenure_client::proto::limits::PRESENCE_PAGE;
use tenure_client::proto::method::PresenceListParams;
use tenure_client::proto::number::U53;
use tenure_client::proto::peer::{Peer, SharedPeer, Status, Transport};
use tenure_client::{Events, PeerChange, PeerMap, Session};

use super::Where;
use super::status::duration;
use super::way::Way;
use crate::exit::Failure;
use crate::output::{Colour, Paint, print, println, safe, table};
use crate::signals::{Signals, interruptible};

/// List who is here. This command's own visit is left out.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    way: Way,
    /// Show the state of their sockets and the end of their leases, and all columns
    #[arg(long)]
    all: bool,
    /// Print JSON: a list, or with --watch one object a line
    #[arg(long)]
    json: bool,
    /// Stay and print who joins, changes and leaves
    #[arg(long)]
    watch: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    interruptible(async move |mut signals| {
        let broker_only = [(args.all, "--all"), (args.watch, "--watch")];
        let broker_only = broker_only.iter().find(|(asked, _)| *asked).map(|(_, flag)| *flag);
        if let Some(through) = signals.unless(args.way.through(&args.at, None, broker_only)).await? {
            let path = format!("/v1/peers?{}", through.and_mesh().trim_start_matches('&'));
            let answer = signals.unless(through.local.get(&path)).await?;
            let peers: Vec<Peer> = serde_json::from_value(answer["peers"].clone()).map_err(|error| {
                Failure::Failed(format!("the daemon's answer is not a list of peers: {error}"))
            })?;
            show(&peers, &args);
            return Ok(());
        }
        let (session, events) = signals.unless(args.at.visit("tenure peers")).await?;
        let mut peers = signals.unless(async { Ok(session.peers(args.all).await?) }).await?;
        peers.retain(|peer| peer.session != session.key());
        if args.watch {
            show(&peers, &args);
            return watch(session, events, &args, &mut signals).await;
        }
        // Goodbye first: a reader that went away ends the process while it prints, and would leave a lease.
        super::leave(session, events).await;
        show(&peers, &args);
        Ok(())
    })
}

fn show(peers: &[Peer], args: &Args) {
    if args.json && args.watch {
        peers.iter().for_each(|peer| println(&json!({"kind": "here", "peer": peer}).to_string()));
    } else if args.json {
        println(&json!(peers).to_string());
    } else if peers.is_empty() {
        eprintln!("nobody else is here");
    } else {
        print(&listing(peers, args.all));
    }
}

fn listing(peers: &[Peer], all: bool) -> String {
    let mut header = vec!["NAME", "STATUS", "SESSION", "HOST", "SUMMARY"];
    if all {
        header.extend(["MEMBER", "TRANSPORT", "LEASE LEFT"]);
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64);
    let row = |peer: &Peer| {
        let text = |text: &Option<String>| safe(text.as_deref().unwrap_or("-"));
        let session = peer.session.to_string();
        let shown = if all { session.as_str() } else { &session[..12] };
        let status = status(peer.status).to_owned();
        let mut row = vec![safe(&peer.name), status, shown.to_owned(), text(&peer.host), text(&peer.summary)];
        if all {
            let left =
                peer.lease_until.map_or("-".to_owned(), |until| duration(until.get().saturating_sub(now)));
            let transport = match peer.transport {
                Some(Transport::Online) => "online",
                Some(Transport::Grace) => "grace",
                None => "-",
            };
            row.extend([peer.member.to_string()[..12].to_owned(), transport.to_owned(), left]);
        }
        row
    };
    table(&header, &peers.iter().map(row).collect::<Vec<_>>())
}

pub(super) fn status(status: Status) -> &'static str {
    match status {
        Status::Idle => "idle",
        Status::Working => "working",
        Status::Dnd => "dnd",
    }
}

/// Prints every change until interrupted. Breaks of our own socket are nothing to talk about.
async fn watch(
    session: Session,
    mut events: Events,
    args: &Args,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let mut map = PeerMap::default();
    let paint = Paint::stdout();
    let own = session.key();
    let tell = |kind: PresenceKind, peer: &Peer| {
        if peer.session != own {
            match args.json {
                true => println(&json!({"kind": kind, "peer": peer}).to_string()),
                false => println(&change(paint, kind, peer)),
            }
        }
    };
    loop {
        // Both are cancel-safe: neither has taken anything when it loses.
        let event = tokio::select! {
            event = events.next() => event?,
            () = signals.recv() => break,
        };
        match map.apply(&event) {
            PeerChange::Peer(kind, peer) => tell(kind, peer.get()),
            PeerChange::Replaced(found) => found.iter().for_each(|(kind, peer)| tell(*kind, peer.get())),
            PeerChange::None => {}
        }
        if map.needs_fetch() {
            // The list is not read on after a signal, so `refetch` need not be cancel-safe.
            let found = tokio::select! {
                found = refetch(&session, &mut map) => found?,
                () = signals.recv() => break,
            };
            found.iter().for_each(|(kind, peer)| tell(*kind, peer.get()));
        }
    }
    super::leave(session, events).await;
    Ok(())
}

/// One line for what became of a peer.
pub(super) fn change(paint: Paint, kind: PresenceKind, peer: &Peer) -> String {
    let (colour, verb) = match kind {
        PresenceKind::Joined => (Colour::Good, "joined"),
        PresenceKind::Left => (Colour::Bad, "left"),
        PresenceKind::Updated => (Colour::Warn, "updated"),
    };
    let mut line = format!("{} {}", paint.paint(colour, &format!("{verb:<8}")), safe(&peer.name));
    if kind != PresenceKind::Left {
        line += &format!(" ({})", status(peer.status));
        if let Some(summary) = &peer.summary {
            line += &format!(" {}", safe(summary));
        }
    }
    line + &paint.paint(Colour::Dim, &format!("  {}", &peer.session.to_string()[..12]))
}

/// Reads the whole map again, page by page; gives what was missed meanwhile.
pub(super) async fn refetch(
    session: &Session,
    map: &mut PeerMap,
) -> Result<Vec<(PresenceKind, SharedPeer)>, Failure> {
    let mut after = None;
    loop {
        let limit = Some(U53::saturating(PRESENCE_PAGE as u64));
        let page = session.presence_page(PresenceListParams { after, limit, debug: false }).await?;
        let change = map.page(&page, after.is_none());
        after = page.next;
        if after.is_none() {
            return Ok(if let PeerChange::Replaced(found) = change { found } else { Vec::new() });
        }
    }
}
