//! Offering and finding services by way of the SDK, in front of a broker that the test plays.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Broker, connect};
use serde_json::{Value, json};
use tenure_client::proto::ErrorCode;
use tenure_client::proto::service::ServiceKind;
use tenure_client::{Offered, Session};

/// Answers the next renewal: for each name a yes, or a code; gives what was offered.
async fn judge(broker: &mut Broker, code: Option<&str>) -> Value {
    let (id, params) = broker.expect("service.renew").await;
    let verdict = |offer: &Value| match code {
        None => json!({"name": offer["name"], "ok": true}),
        Some(code) => {
            let error = json!({"code": code, "message": "no", "retryable": false});
            json!({"name": offer["name"], "ok": false, "error": error})
        }
    };
    let results: Vec<Value> = params["services"].as_array().unwrap().iter().map(verdict).collect();
    broker.reply(id, json!({"results": results})).await;
    params["services"].clone()
}

async fn offer(broker: &mut Broker, session: &Session) -> Offered {
    let building = session.offer("db", ServiceKind::Tcp).description("a database").tag("pg").hide(true);
    let (offered, services) = tokio::join!(building, judge(broker, None));
    let metadata = json!({"description": "a database", "tags": ["pg"], "hide": true});
    assert_eq!(services, json!([{"name": "db", "kind": "tcp", "metadata": metadata, "degraded": false}]));
    let mut offered = offered.unwrap();
    assert_eq!(offered.verdict().await.unwrap(), Ok(()));
    offered
}

#[tokio::test]
async fn an_offer_is_held_through_a_break_and_withdrawn_when_it_is_dropped() {
    let (mut broker, session) = connect(|options| options).await;
    let mut offered = offer(&mut broker, &session).await;
    session.sever().await;
    broker.accept(Value::Null).await;
    judge(&mut broker, Some("name_taken")).await;
    let refused = offered.verdict().await.unwrap().unwrap_err();
    assert_eq!(refused.code, ErrorCode::NameTaken);
    offered.set_degraded(true);
    assert_eq!(judge(&mut broker, None).await[0]["degraded"], json!(true));
    assert_eq!(offered.verdict().await.unwrap(), Ok(()));
    drop(offered);
    let (id, params) = broker.expect("service.withdraw").await;
    assert_eq!(params, json!({"names": ["db"]}));
    broker.reply(id, json!({})).await;
}

#[tokio::test]
async fn an_offer_ends_with_its_session() {
    let (mut broker, session) = connect(|options| options).await;
    let mut offered = offer(&mut broker, &session).await;
    session.part().await;
    assert!(offered.verdict().await.is_err());
    assert!(offered.verdict().await.is_err(), "every time");
    assert!(session.offer("web", ServiceKind::Http).await.is_err(), "the session is over");
}

#[tokio::test]
async fn services_are_read_page_by_page() {
    let (mut broker, session) = connect(|options| options).await;
    let key = "02".repeat(32);
    let service = |name: &str| {
        json!({"name": name, "kind": "tcp", "state": "stale", "degraded": false, "session": key, "member": key,
            "metadata": {"hide": false}})
    };
    let versions = json!({"presence": 0, "services": 2, "health": 0});
    let answering = async {
        let (id, params) = broker.expect("services.list").await;
        assert_eq!(params, json!({"all": true}));
        let page = json!({"services": [service("a")], "next": "a", "stateVersion": versions});
        broker.reply(id, page).await;
        let (id, params) = broker.expect("services.list").await;
        assert_eq!(params, json!({"all": true, "after": "a"}));
        broker.reply(id, json!({"services": [service("b")], "stateVersion": versions})).await;
    };
    let (services, ()) = tokio::join!(session.services(true), answering);
    let names: Vec<String> = services.unwrap().iter().map(|service| service.name.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
}
