//! Sessions that several ask for at once.

use std::collections::BTreeSet;

use serde_json::json;

use super::house;

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_for_a_new_name_at_the_same_time_gets_the_same_session() {
    let house = house().await;
    for name in 0..8 {
        let name = format!("agent {name}");
        let asked = (0..8).map(|_| {
            let (client, wish) = (house.client.clone(), json!({"name": name}));
            tokio::spawn(async move { client.post("/v1/sessions", &wish).await })
        });
        let mut answers = BTreeSet::new();
        for answer in asked.collect::<Vec<_>>() {
            let (status, session) = answer.await.unwrap();
            assert_eq!(status, 200, "{session}");
            answers.insert(session.to_string());
        }
        assert_eq!(answers.len(), 1, "{answers:?}");
    }
    let (_, health) = house.client.get("/v1/health").await;
    assert_eq!(health["sessions"], 9, "eight, and the daemon's own");
}
