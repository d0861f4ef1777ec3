//! Where a client connects from, and its place among the sockets of that address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tenure_core::address::Address;

use crate::shared::Shared;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Peer {
    /// Its address as it is counted.
    pub(crate) fn address(self) -> Address {
        Address::new(match self.0.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        })
    }
}

/// A socket's place among those of its address; the place is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    /// Where from, if that is counted.
    address: Option<Address>,
}

impl Place {
    /// Takes a place for a socket from `peer`; nothing when its address has as many as it may.
    pub(crate) fn take(shared: &Arc<Shared>, peer: Peer) -> Option<Place> {
        let loopback = peer.0.ip().to_canonical().is_loopback();
        let mut addresses = shared.addresses();
        let address = addresses.counts(loopback).then(|| peer.address());
        let room = address.is_none_or(|address| addresses.open(address));
        drop(addresses);
        room.then(|| Place { shared: shared.clone(), address })
    }

    /// Where from, if that is counted.
    pub(crate) fn address(&self) -> Option<Address> {
        self.address
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            self.shared.addresses().close(address);
        }
    }
}
