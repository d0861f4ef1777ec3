//! What a client that takes the protocol's text literally knows of presence.
//!
//! It drops a version at or below its own and would have to refetch when a base is beyond it. In these tests
//! that is never called for, so it is an error here unless a test says otherwise.

use std::collections::BTreeMap;

use serde_json::Value;

#[derive(Clone, Debug, Default)]
pub(crate) struct Mirror {
    pub(crate) version: u64,
    pub(crate) peers: BTreeMap<String, Value>,
    /// Events that were old news.
    pub(crate) dropped: usize,
}

impl Mirror {
    /// Takes in a hello's result: its versions replace what was there, even when lower.
    pub(crate) fn attached(&mut self, result: &Value) {
        self.version = result["stateVersion"]["presence"].as_u64().expect("stateVersion.presence");
        if let Some(peers) = result["snapshot"]["presence"].as_array() {
            self.peers = peers.iter().map(|peer| (session(peer), peer.clone())).collect();
        }
    }

    /// Takes in the data of a presence event.
    pub(crate) fn step(&mut self, data: &Value) {
        let number = |field: &str| data[field].as_u64().unwrap_or_else(|| panic!("{field} of {data}"));
        let (base, version) = (number("base"), number("version"));
        assert!(base < version, "a step goes forward: {data}");
        if version <= self.version {
            self.dropped += 1;
            return;
        }
        assert!(base <= self.version, "base {base} is beyond what was sent ({}): {data}", self.version);
        self.version = version;
        let peer = &data["peer"];
        let known = self.peers.contains_key(&session(peer));
        match data["kind"].as_str().expect("kind") {
            "joined" => assert!(self.peers.insert(session(peer), peer.clone()).is_none(), "twice: {data}"),
            "updated" => assert!(self.peers.insert(session(peer), peer.clone()).is_some(), "unknown: {data}"),
            "left" => assert!(known && self.peers.remove(&session(peer)).is_some(), "unknown: {data}"),
            other => panic!("kind {other}"),
        }
    }
}

fn session(peer: &Value) -> String {
    peer["session"].as_str().expect("a peer has a session").to_owned()
}
