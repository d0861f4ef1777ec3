//! `tenure topics`: which there are, and making one.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use tenure_client::proto::limits::PARTITIONS_MAX;
use tenure_client::proto::method::Method;
use tenure_client::proto::name::TopicName;
use tenure_client::proto::number::U53;
use tenure_client::proto::topic::{
    GroupsListParams, GroupsListResult, TopicCreateParams, TopicInfo, TopicsListParams, TopicsListResult,
};
use tenure_client::proto::{WireError, error::ErrorCode};

use super::Where;
use super::administer::Administer;
use super::guest::Guest;
use super::names;
use crate::exit::Failure;
use crate::output::{print, println, table};
use crate::span;

/// List topics, make one, or delete one.
///
/// A topic is also made by the first message or subscription, with one partition: --create
/// is for those that want more, or that keep settled messages for another time than 7 days.
/// --delete needs the topic's owner and an empty topic, or an operator: a member of that role,
/// or whoever has the broker's operator token (--operator).
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure topics
  tenure topics --create jobs --partitions 8 --retention 1d
  tenure topics --delete jobs --operator")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// Make the topic of this name; if it is there with the same settings, that is fine too
    #[arg(long, value_name = "NAME", value_parser = names::topic)]
    create: Option<TopicName>,
    /// How many logs it has: --partitions 8 lets eight readers keep order by key
    #[arg(long, value_name = "N", requires = "create", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(PARTITIONS_MAX)))]
    partitions: u32,
    /// How long settled messages stay readable: --retention 1d [default: 7d]
    #[arg(long, value_name = "TIME", requires = "create", value_parser = span::parse)]
    retention: Option<Duration>,
    /// Delete the topic of this name with all that it holds; made again, its numbers go on
    #[arg(long, value_name = "NAME", conflicts_with = "create", value_parser = names::topic)]
    delete: Option<TopicName>,
    /// Delete with the operator's token, as `tenure kick` does, instead of as a member
    #[arg(long, requires = "delete")]
    operator: bool,
    /// Where the broker keeps its state, and the operator's token [default: $TENURE_HOME/broker]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    if let (Some(name), true) = (&args.delete, args.operator) {
        let on = Administer::new(args.at.clone(), args.data_dir.clone(), args.json);
        on.of_mesh(hyper::Method::DELETE, &format!("/topics/{name}"), None)?;
        gone(&json!({"deleted": name}), args.json);
        return Ok(());
    }
    crate::block_on(async move {
        let guest = args.at.ask("tenure topics").await?;
        match (&args.create, &args.delete) {
            (Some(name), _) => create(guest, name, &args).await,
            (_, Some(name)) => {
                let deleted = guest.session.topic_delete(name.clone()).await;
                guest.leave_with(deleted).await?;
                gone(&json!({"deleted": name}), args.json);
                Ok(())
            }
            _ => {
                let topics = list(&guest).await;
                let topics = guest.leave_with(topics).await?;
                show(&topics, args.json);
                Ok(())
            }
        }
    })
}

/// Says what is gone.
pub(super) fn gone(what: &Value, as_json: bool) {
    let name = what["deleted"].as_str().unwrap_or_default();
    println(&if as_json { what.to_string() } else { format!("{name} is gone") });
}

async fn create(guest: Guest, name: &TopicName, args: &Args) -> Result<(), Failure> {
    let retention_ms = args.retention.map(|time| U53::saturating(time.as_millis() as u64));
    let params = TopicCreateParams { name: name.clone(), partitions: args.partitions, retention_ms };
    let made = guest.session.topic_create(params.clone()).await;
    guest.leave_with(made).await?;
    println(&if args.json { json!(params).to_string() } else { name.to_string() });
    Ok(())
}

/// Every topic, page by page.
pub(super) async fn list(guest: &Guest) -> Result<Vec<TopicInfo>, WireError> {
    let mut topics = Vec::new();
    let mut after = None;
    loop {
        let params = TopicsListParams { after: after.clone(), limit: None };
        let page: TopicsListResult = guest.session.request(Method::TopicsList, params).await?;
        topics.extend(page.topics);
        if page.next.is_some() && page.next == after {
            return Err(WireError::new(ErrorCode::Internal, "the broker's pages do not go on"));
        }
        after = page.next;
        if after.is_none() {
            return Ok(topics);
        }
    }
}

/// Lists the groups that did not fit into the list of topics.
pub(super) async fn list_groups(guest: &Guest, topic: &mut TopicInfo) -> Result<(), WireError> {
    while let Some(after) = topic.groups_next.take() {
        let params = GroupsListParams { topic: topic.name.clone(), after: Some(after.clone()), limit: None };
        let page: GroupsListResult = guest.session.request(Method::GroupsList, params).await?;
        topic.groups.extend(page.groups);
        if page.next.as_ref() == Some(&after) {
            return Err(WireError::new(ErrorCode::Internal, "the broker's pages do not go on"));
        }
        topic.groups_next = page.next;
    }
    Ok(())
}

fn show(topics: &[TopicInfo], json: bool) {
    if json {
        return println(&json!(topics).to_string());
    }
    if topics.is_empty() {
        return eprintln!("there are no topics");
    }
    let row = |topic: &TopicInfo| {
        let retention = topic.retention_ms.map_or("7d".to_owned(), |ms| span::exact(ms.get()));
        let numbers = [topic.partitions.to_string(), topic.entries.get().to_string()];
        let mut row = vec![topic.name.to_string()];
        row.extend(numbers);
        let groups = topic.group_count.map_or(topic.groups.len() as u64, U53::get);
        row.extend([groups.to_string(), retention]);
        row
    };
    let rows: Vec<Vec<String>> = topics.iter().map(row).collect();
    print(&table(&["NAME", "PARTITIONS", "ENTRIES", "GROUPS", "RETENTION"], &rows));
}
