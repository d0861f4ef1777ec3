//! Who a store is: the two values that are made once and outlive every start.

use std::fmt;

use tenure_proto::ClusterId;

/// The identity of a store. Made by the caller, because a store has no source of randomness.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The scope in which resume tokens are good: this store and every broker on it.
    pub cluster_id: ClusterId,
    /// The secret seed of the Ed25519 key that signs resume tokens.
    pub broker_key: [u8; 32],
}

impl fmt::Debug for Identity {
    /// Without the secret: an identity may reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("cluster_id", &self.cluster_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_not_printed() {
        let identity = Identity { cluster_id: "c-1".parse().unwrap(), broker_key: [0xab; 32] };
        let text = format!("{identity:?}");
        assert!(text.contains("c-1"));
        assert!(!text.contains("171") && !text.contains("ab, "), "{text}");
    }
}
