//! `tenure services`: what is offered, once or live.

use clap::Args as ClapArgs;
use serde_json::json;
use tenure_client::proto::event::EventBody;
use tenure_client::proto::service::{
    Service, ServiceEventKind, ServiceKind, ServiceState, ServicesListParams,
};
use tenure_client::{Events, Screen, Session, SessionEvent};

use super::Where;
use crate::exit::Failure;
use crate::output::{Colour, Paint, print, println, safe, table};
use crate::signals::{Signals, interruptible};

/// List what is offered in the mesh.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// Show hidden ones too, and all columns
    #[arg(long)]
    all: bool,
    /// Print JSON: a list, or with --watch one object a line
    #[arg(long)]
    json: bool,
    /// Stay and print what comes, goes stale, comes back, changes and goes; hidden ones are left out of that
    #[arg(long)]
    watch: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    interruptible(async move |mut signals| {
        let (session, events) = signals.unless(args.at.visit("tenure services")).await?;
        let services = signals.unless(async { Ok(session.services(args.all).await?) }).await?;
        if args.watch {
            show(&services, &args);
            return watch(session, events, &args, &mut signals).await;
        }
        // Goodbye first: a reader that went away ends the process while it prints, and would leave a lease.
        super::leave(session, events).await;
        show(&services, &args);
        Ok(())
    })
}

fn show(services: &[Service], args: &Args) {
    if args.json && args.watch {
        services.iter().for_each(|service| println(&json!({"kind": "here", "service": service}).to_string()));
    } else if args.json {
        println(&json!(services).to_string());
    } else if services.is_empty() {
        eprintln!("nothing is offered here");
    } else {
        print(&listing(services, args.all));
    }
}

fn listing(services: &[Service], all: bool) -> String {
    let mut header = vec!["NAME", "KIND", "STATE", "SESSION", "DESCRIPTION"];
    if all {
        header.extend(["MEMBER", "OWNER", "TAGS", "HIDDEN"]);
    }
    let row = |service: &Service| {
        let text = |text: &Option<String>| safe(text.as_deref().unwrap_or("-"));
        let session = service.session.to_string();
        let shown = if all { session.as_str() } else { &session[..12] };
        let metadata = &service.metadata;
        let mut row = vec![
            service.name.to_string(),
            kind(service.kind).to_owned(),
            state(service).to_owned(),
            shown.to_owned(),
            text(&metadata.description),
        ];
        if all {
            let tags = if metadata.tags.is_empty() { "-".to_owned() } else { safe(&metadata.tags.join(",")) };
            let hidden = if metadata.hide { "yes" } else { "-" };
            row.extend([
                service.member.to_string()[..12].to_owned(),
                text(&metadata.owner),
                tags,
                hidden.to_owned(),
            ]);
        }
        row
    };
    table(&header, &services.iter().map(row).collect::<Vec<_>>())
}

fn kind(kind: ServiceKind) -> &'static str {
    match kind {
        ServiceKind::Tcp => "tcp",
        ServiceKind::Http => "http",
        ServiceKind::Run => "run",
    }
}

fn state(service: &Service) -> &'static str {
    match (service.state, service.degraded) {
        (ServiceState::Stale, _) => "stale",
        (ServiceState::Online, true) => "degraded",
        (ServiceState::Online, false) => "online",
    }
}

/// Prints every change until interrupted. Breaks of our own socket are nothing to talk about: what was missed meanwhile
/// is told as what became of each.
async fn watch(
    session: Session,
    mut events: Events,
    args: &Args,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let mut screen = Screen::default();
    let paint = Paint::stdout();
    let tell = |kind: ServiceEventKind, service: &Service| match args.json {
        true => println(&json!({"kind": kind, "service": service}).to_string()),
        false => println(&change(paint, kind, service)),
    };
    let mut known = false;
    loop {
        // Both are cancel-safe: neither has taken anything when it loses.
        let event = tokio::select! {
            event = events.next() => event?,
            () = signals.recv() => break,
        };
        let before: Vec<Service> = screen.services().cloned().collect();
        screen.apply(&event);
        let missing = screen.missing();
        let read = missing.contains(&tenure_client::proto::event::ResyncWhat::Services);
        if read {
            // The list is not read on after a signal, so `refetch` need not be cancel-safe.
            tokio::select! {
                read = refetch(&session, &mut screen) => read?,
                () = signals.recv() => break,
            }
        }
        match event {
            SessionEvent::Event { body, .. } if !read => {
                if let EventBody::Service(event) = *body {
                    tell(event.kind, &event.service);
                }
            }
            SessionEvent::Attached(_) | SessionEvent::Event { .. } => {
                if known {
                    let after: Vec<Service> = screen.services().cloned().collect();
                    differences(&before, &after).iter().for_each(|(kind, service)| tell(*kind, service));
                }
                known = true;
            }
            _ => {}
        }
    }
    super::leave(session, events).await;
    Ok(())
}

/// What became of services from `old` to `new`, both ordered by name.
fn differences(old: &[Service], new: &[Service]) -> Vec<(ServiceEventKind, Service)> {
    let find = |services: &[Service], wanted: &Service| {
        let at = services.binary_search_by(|service| service.name.cmp(&wanted.name)).ok();
        at.and_then(|at| services.get(at).cloned())
    };
    let gone = old.iter().filter(|service| find(new, service).is_none());
    let mut found: Vec<_> = gone.map(|service| (ServiceEventKind::Gone, service.clone())).collect();
    for is in new {
        let kind = match (find(old, is), is.state) {
            (Some(was), _) if was == *is => continue,
            (Some(was), _) if was.state == is.state => ServiceEventKind::Updated,
            (_, ServiceState::Online) => ServiceEventKind::Online,
            (_, ServiceState::Stale) => ServiceEventKind::Stale,
        };
        found.push((kind, is.clone()));
    }
    found
}

/// One line for what became of a service.
fn change(paint: Paint, what: ServiceEventKind, service: &Service) -> String {
    let (colour, verb) = match what {
        ServiceEventKind::Online => (Colour::Good, "online"),
        ServiceEventKind::Stale => (Colour::Warn, "stale"),
        ServiceEventKind::Gone => (Colour::Bad, "gone"),
        ServiceEventKind::Updated => (Colour::Warn, "updated"),
    };
    let mut line =
        format!("{} {} ({})", paint.paint(colour, &format!("{verb:<8}")), service.name, kind(service.kind));
    if what != ServiceEventKind::Gone {
        if service.degraded {
            line += " degraded";
        }
        if let Some(description) = &service.metadata.description {
            line += &format!(" {}", safe(description));
        }
    }
    line + &paint.paint(Colour::Dim, &format!("  {}", &service.session.to_string()[..12]))
}

/// Reads the whole list again, page by page.
async fn refetch(session: &Session, screen: &mut Screen) -> Result<(), Failure> {
    let mut params = ServicesListParams::default();
    loop {
        let page = session.services_page(params.clone()).await?;
        screen.services_read(&page, params.after.is_none());
        match page.next {
            Some(next) => params.after = Some(next),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::proto::{MemberKey, SessionKey};

    fn service(name: &str, state: ServiceState) -> Service {
        Service {
            name: name.parse().unwrap(),
            kind: ServiceKind::Tcp,
            state,
            degraded: false,
            session: SessionKey([1; 32]),
            member: MemberKey([2; 32]),
            metadata: Default::default(),
            first_seen_at: None,
            last_renewed_at: None,
            expires_at: None,
        }
    }

    #[test]
    fn what_was_missed_is_told_as_what_became_of_each() {
        let (online, stale) = (ServiceState::Online, ServiceState::Stale);
        let old = [service("a", online), service("b", online), service("c", stale), service("d", online)];
        let changed = Service { degraded: true, ..service("d", online) };
        let new = [service("b", stale), service("c", online), changed, service("e", online)];
        let found = differences(&old, &new);
        let told: Vec<_> = found.iter().map(|(kind, service)| (*kind, service.name.as_str())).collect();
        assert_eq!(
            told,
            [
                (ServiceEventKind::Gone, "a"),
                (ServiceEventKind::Stale, "b"),
                (ServiceEventKind::Online, "c"),
                (ServiceEventKind::Updated, "d"),
                (ServiceEventKind::Online, "e"),
            ]
        );
    }
}
