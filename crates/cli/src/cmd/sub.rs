//! `tenure sub`: follow a topic.

use clap::Args as ClapArgs;
use tenure_client::Start;
use tenure_client::proto::limits::PREFETCH_MAX;
use tenure_client::proto::name::{GroupName, TopicName};

use super::Where;
use super::guest::{Guest, Signals, Stay, Who, ended};
use super::names;
use super::reader::Reader;
use super::show::Format;
use crate::exit::Failure;

/// Follow a topic, and ack each message once it is printed.
///
/// A line is: partition/seq and key, sender, age, what it says. Each message is acked once its line has been written; interrupt the command, or close the pipe it writes to, and
/// what was not printed goes back. Without --group it sees everything and leaves no trace; with --group it shares the
/// work with all others of that group, and the group's place in the topic outlives them.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure sub builds                                  # what is published from now on
  tenure sub builds --from earliest --raw > all.txt  # everything there is, byte by byte
  tenure sub jobs --group workers --prefetch 1       # one of a crew, one job at a time
  tenure sub jobs --partition 0 --from 120 --count 5")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
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
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=i64::from(PREFETCH_MAX)))]
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
    crate::block_on(async move {
        let mut signals = Signals::listen()?;
        let stay = Stay { talks: true, ..Stay::default() };
        let guest = args.at.enter(Who::Visit("tenure sub"), stay).await?;
        let mut reader = Reader::new(args.format.show(), !args.no_ack, args.count);
        let outcome = follow(&guest, &args, &mut reader, &mut signals).await;
        guest.leave().await;
        outcome
    })
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
    let mut stream = tokio::select! {
        stream = subscribe => stream.map_err(ended)?,
        () = signals.recv() => return Ok(()),
    };
    eprintln!("following {}", args.topic);
    let outcome = reader.follow(&mut stream, signals).await;
    let settled = reader.settle().await;
    if outcome.is_ok() {
        stream.unsubscribe().await;
    }
    outcome.and(settled)
}
