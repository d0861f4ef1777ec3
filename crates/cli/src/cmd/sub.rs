//! `tenure sub`: follow a topic.
//!
//! As a session that the daemon holds it goes through the daemon; that session then does not hear what it posts itself.
//! Otherwise it is a visit, at the daemon if one runs, else at the broker, which hears everybody and leaves no trace.

use clap::Args as ClapArgs;
use hyper::{Method, StatusCode};
use serde_json::json;
use tenure_client::Start;
use tenure_client::proto::limits::PREFETCH_MAX;
use tenure_client::proto::name::{GroupName, TopicName};

use super::Where;
use super::guest::{Guest, Stay, Who, ended};
use super::letters::{self, Want};
use super::names;
use super::reader::{Done, Reader};
use super::show::Format;
use super::way::{Through, Way};
use crate::exit::Failure;
use crate::signals::{Signals, interruptible};

/// Messages that may be in hand at once, unless told otherwise.
const PREFETCH: u32 = 32;

/// Follow a topic, and ack each message once it is printed.
///
/// A line is: partition/seq and key, sender, age, what it says. Each message is acked once its line has been written; interrupt the command, or close the pipe it writes to, and
/// what was not printed goes back. Without --group it sees everything and leaves no trace; with --group it shares the
/// work with all others of that group, and the group's place in the topic outlives them.
///
/// When a daemon runs it goes through the daemon, unless it wants what only the broker has: --group, --from, --prefetch,
/// --partition, --no-ack. With a session of the daemon's (TENURE_SESSION) the daemon keeps what is posted while nobody looks: what
/// that session has not seen is printed first, and what it posts itself is not.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure sub builds                                  # what is published from now on
  tenure sub builds --from earliest --raw > all.txt  # everything there is, byte by byte
  tenure sub jobs --group workers --prefetch 1       # one of a crew, one job at a time
  tenure sub jobs --partition 0 --from 120 --count 5")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    way: Way,
    /// The topic; made if it is not there
    #[arg(value_parser = names::topic)]
    topic: TopicName,
    /// Share the work with all others of this group: --group workers
    #[arg(long, value_name = "NAME", value_parser = names::group)]
    group: Option<GroupName>,
    /// Where to begin, if the group is new: new, earliest, or the number of an entry
    #[arg(long, value_name = "WHERE", default_value = "new", value_parser = names::start)]
    from: Start,
    /// How many messages may be in hand at once: --prefetch 1 leaves the most to others
    #[arg(long, value_name = "N", default_value_t = PREFETCH, value_parser = clap::value_parser!(u32).range(1..=i64::from(PREFETCH_MAX)))]
    prefetch: u32,
    /// One partition only: --partition 0
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
    /// Do not ack: what was printed goes back to the group when this ends, and no more than --prefetch come
    #[arg(long)]
    no_ack: bool,
    /// End after so many: --count 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    interruptible(async move |mut signals| {
        if let Some(through) = args.way.through(&args.at, None, broker_only(&args)).await? {
            let mut want = Want {
                show: args.format.show(),
                follow: true,
                marks: true,
                limit: args.count,
                member: false,
                topic: Some(args.topic.clone()),
            };
            return match args.way.has_session() {
                true => follow_kept(&through, &args.topic, &mut want, &mut signals).await,
                false => visit(&through, &args.topic, &mut want, &mut signals).await,
            };
        }
        let stay = Stay { talks: true, ..Stay::default() };
        let guest = signals.unless(args.at.enter(Who::Visit("tenure sub"), stay)).await?;
        let mut reader = Reader::new(args.format.show(), !args.no_ack, args.count);
        let outcome = follow(&guest, &args, &mut reader, &mut signals).await;
        guest.leave_soon(&mut signals).await;
        outcome
    })
}

/// What only a broker can do of what was asked.
fn broker_only(args: &Args) -> Option<&'static str> {
    let asked = [
        (args.group.is_some(), "--group"),
        (args.from != Start::New, "--from"),
        (args.prefetch != PREFETCH, "--prefetch"),
        (args.partition.is_some(), "--partition"),
        (args.no_ack, "--no-ack"),
    ];
    asked.iter().find(|(asked, _)| *asked).map(|(_, what)| *what)
}

/// Follows a topic as a session of the daemon's; ends that afterwards, if it has begun here.
async fn follow_kept(
    through: &Through,
    topic: &TopicName,
    want: &mut Want,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let begun = through.local.call(Method::POST, &path(through, topic, "subscribe"), None).await?.good()?;
    match begun["inForce"] == true {
        true => eprintln!("following {topic}"),
        false => eprintln!("following {topic} as soon as the daemon reaches its broker"),
    }
    let outcome = letters::read(through, want, signals).await;
    if begun["changed"] == true {
        through.local.call(Method::POST, &path(through, topic, "unsubscribe"), None).await?.good()?;
    }
    outcome
}

fn path(through: &Through, topic: &TopicName, verb: &str) -> String {
    format!("/v1/topics/{topic}/{verb}?{}", through.and_mesh().trim_start_matches('&'))
}

/// Follows a topic as a visit at the daemon; as a new one, when the daemon starts anew and the old one is gone with it.
async fn visit(
    through: &Through,
    topic: &TopicName,
    want: &mut Want,
    signals: &mut Signals,
) -> Result<(), Failure> {
    loop {
        let mut wish = json!({"name": "tenure sub", "visit": true});
        if let Some(mesh) = &through.mesh {
            wish["mesh"] = json!(mesh);
        }
        let made = through.local.post("/v1/sessions", &wish).await?;
        let (session, token) = (&made["session"], made["token"].as_str().map(str::to_owned));
        let local = through.local.clone().speaking_as(token);
        let visiting = Through { local: local.clone(), mesh: through.mesh.clone() };
        let outcome = follow_kept(&visiting, topic, want, signals).await;
        let left = local
            .call(Method::DELETE, &format!("/v1/sessions/{}", session.as_str().unwrap_or_default()), None)
            .await;
        match (&outcome, left) {
            (Err(Failure::Refused(_)), Ok(left)) if left.status != StatusCode::NO_CONTENT => {
                eprintln!("the daemon has started anew: what was posted meanwhile is not shown");
            }
            _ => return outcome,
        }
    }
}

async fn follow(
    guest: &Guest,
    args: &Args,
    reader: &mut Reader,
    signals: &mut Signals,
) -> Result<(), Failure> {
    // Nothing that nobody wants is taken from others.
    let wanted = args.count.map_or(u32::MAX, |count| u32::try_from(count).unwrap_or(u32::MAX));
    let mut subscribe =
        guest.session.subscribe(args.topic.as_str()).prefetch(args.prefetch.min(wanted)).from(args.from);
    if let Some(partition) = args.partition {
        subscribe = subscribe.partition(partition);
    }
    subscribe = match &args.group {
        Some(group) => subscribe.group(group.as_str()),
        // There is nobody to give anything back to, so nothing is withheld either.
        None if args.no_ack => subscribe.auto_ack(),
        None => subscribe,
    };
    // The request is not resumed after a signal, so it need not be cancel-safe: the session ends with the command.
    let mut stream = tokio::select! {
        stream = subscribe => stream.map_err(ended)?,
        () = signals.recv() => return Ok(()),
    };
    eprintln!("following {}", args.topic);
    let outcome = reader.follow(&mut stream, signals).await;
    let done = *outcome.as_ref().unwrap_or(&Done::Enough);
    let settled = reader.finish(done, guest, signals).await;
    if outcome.is_ok() {
        guest.at_last(stream.unsubscribe()).await;
    }
    outcome.and(settled)
}
