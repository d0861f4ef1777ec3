//! `tenure groups`: who shares which topic, and how far behind they are.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use tenure_client::proto::WireError;
use tenure_client::proto::name::{GroupName, TopicName};
use tenure_client::proto::topic::{GroupInfo, TopicInfo};

use super::Where;
use super::administer::Administer;
use super::guest::Guest;
use super::{names, topics};
use crate::exit::Failure;
use crate::output::{print, println, table};
use crate::span;

/// List the groups that share topics, and how far behind they are.
///
/// How much waits (DEPTH), how much of that is in somebody's hands (UNSETTLED), how
/// many subscriptions compete for it (MEMBERS), and how long the oldest has waited.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure groups jobs --json
  tenure groups jobs --delete old-crew --operator")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// Of this topic only
    #[arg(value_parser = names::topic)]
    topic: Option<TopicName>,
    /// Delete this group of the topic: by the member that made it, or an operator
    #[arg(long, value_name = "GROUP", requires = "topic", value_parser = names::group)]
    delete: Option<GroupName>,
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
    let gone = |group: &GroupName| topics::gone(&json!({"deleted": group}), args.json);
    if let (Some(topic), Some(group), true) = (&args.topic, &args.delete, args.operator) {
        let on = Administer::new(args.at.clone(), args.data_dir.clone(), args.json);
        on.of_mesh(hyper::Method::DELETE, &format!("/topics/{topic}/groups/{group}"), None)?;
        gone(group);
        return Ok(());
    }
    crate::block_on(async {
        let guest = args.at.ask("tenure groups").await?;
        if let (Some(topic), Some(group)) = (&args.topic, &args.delete) {
            let deleted = guest.session.group_delete(topic.clone(), group.clone()).await;
            guest.leave_with(deleted).await?;
            gone(group);
            return Ok(());
        }
        let found = list(&guest, args.topic.as_ref()).await;
        let found = guest.leave_with(found).await?;
        if let (Some(topic), true) = (&args.topic, found.is_empty()) {
            return Err(Failure::Refused(format!("not_found: there is no topic {topic}")));
        }
        show(&found, args.json);
        Ok(())
    })
}

/// The topics that are wanted, with all their groups.
async fn list(guest: &Guest, topic: Option<&TopicName>) -> Result<Vec<TopicInfo>, WireError> {
    let mut found = topics::list(guest).await?;
    found.retain(|info| topic.is_none_or(|topic| info.name == *topic));
    for info in &mut found {
        topics::list_groups(guest, info).await?;
    }
    Ok(found)
}

fn show(topics: &[TopicInfo], as_json: bool) {
    let groups = || topics.iter().flat_map(|topic| topic.groups.iter().map(move |group| (topic, group)));
    if as_json {
        let groups: Vec<Value> = groups()
            .map(|(topic, group)| {
                let mut object = json!(group);
                object["topic"] = json!(topic.name);
                object
            })
            .collect();
        return println(&json!(groups).to_string());
    }
    let row = |(topic, group): (&TopicInfo, &GroupInfo)| {
        let oldest = group.oldest_ms.map_or("-".to_owned(), |ms| span::short(ms.get()));
        let mut row = vec![group.name.to_string(), topic.name.to_string()];
        row.extend([group.depth, group.unsettled, group.members].map(|number| number.get().to_string()));
        row.push(oldest);
        row
    };
    let rows: Vec<Vec<String>> = groups().map(row).collect();
    if rows.is_empty() {
        return eprintln!("there are no groups");
    }
    print(&table(&["NAME", "TOPIC", "DEPTH", "UNSETTLED", "MEMBERS", "OLDEST"], &rows));
}
