//! Services by way of the command, with real processes: what is offered, through a killed broker and a parted publisher.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::process::Stdio;

use common::proc::Proc;
use common::{World, join};
use serde_json::Value;
use tenure_client::proto::service::ServiceKind;

#[tokio::test]
async fn what_is_offered_is_listed_and_watched_through_a_killed_broker() {
    let world = World::new();
    let broker = world.broker().await;
    let url = format!("ws://{}", broker.addr);
    let (session, events) = join(broker.addr, "publisher").await;
    drop(events);
    let mut db = session.offer("db", ServiceKind::Tcp).description("the database").await.unwrap();
    let mut secret = session.offer("secret", ServiceKind::Http).hide(true).await.unwrap();
    for offered in [&mut db, &mut secret] {
        while offered.verdict().await.unwrap().is_err() {}
    }
    let command = |args: &[&str]| {
        let mut command = world.tenure(args);
        command.env("TENURE_BROKER", &url).stdin(Stdio::null());
        command
    };
    let list = |args: &[&str]| -> Vec<String> {
        let output = command(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        found.as_array().unwrap().iter().map(|service| service["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(list(&["services", "--json"]), ["db"]);
    assert_eq!(list(&["services", "--json", "--all"]), ["db", "secret"]);
    let table = command(&["services"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("db") && table.contains("online") && table.contains("the database"), "{table}");

    let mut watch = Proc::spawn("watch", command(&["services", "--watch", "--json"]));
    watch.until("the list", |line| line["kind"] == "here" && line["service"]["name"] == "db").await;
    let addr = broker.kill().await;
    let _broker = world.broker_at(&addr.to_string()).await;
    // The name was held meanwhile: nobody saw it go.
    drop(db);
    watch.until("gone", |line| line["kind"] == "gone" && line["service"]["name"] == "db").await;
    let gone = watch.seen().iter().filter(|line| line["kind"] == "gone").count();
    assert_eq!(gone, 1);
    assert_eq!(list(&["services", "--json", "--all"]), ["secret"]);
}
