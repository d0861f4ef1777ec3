//! What a broker is to whoever connects: its name, its keys, its doors and its numbers. Fixed while one connection lives:
//! where meshes are made or changed, later connections are given another.

use std::collections::BTreeMap;
use std::sync::Arc;

use ed25519_dalek::SigningKey;
use tenure_kit::host::Doors;
use tenure_proto::ids::ClusterId;
use tenure_proto::name::MeshName;

use crate::config::MeshConfig;

/// What all connections of one broker share and none of them changes.
#[derive(Clone, Debug)]
pub struct House {
    /// What clients sign as the broker they mean; see [`House::id_of`].
    pub broker_id: String,
    /// The version that is shown to clients.
    pub version: String,
    /// The store's cluster: a resume token of another is not ours.
    pub cluster: ClusterId,
    /// Signs resume tokens; its public half is also the broker's id.
    pub key: SigningKey,
    /// Whether clients reach it through TLS, its own or a proxy's.
    pub secure: bool,
    /// Where services of HTTP are found, with `*` for the name, if anywhere.
    pub relay: Option<String>,
    /// The hosts and origins that are ours.
    pub doors: Doors,
    /// The meshes that may be joined here, and their numbers.
    pub rooms: BTreeMap<MeshName, Arc<MeshConfig>>,
    /// The numbers that hold for this connection: its mesh's, and before its hello the broker's own.
    pub config: Arc<MeshConfig>,
}

impl House {
    /// What it is to a connection that has joined `mesh`.
    pub fn room(&self, mesh: &MeshName) -> House {
        let config = self.rooms.get(mesh).unwrap_or(&self.config).clone();
        House { config, ..self.clone() }
    }

    /// The id of the broker that signs with `key`.
    pub fn id_of(key: &SigningKey) -> String {
        tenure_proto::text::hex(&key.verifying_key().to_bytes()[..8])
    }
}
