//! Where a client connects from, and its place among the sockets of that address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::HeaderMap;
use tenure_kit::address::Address;
use tenure_kit::cidr::Cidr;

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

    /// The client itself, where this is a proxy that is believed: of `X-Forwarded-For` the last that is no such proxy, as
    /// what stands before it anybody may have written.
    pub(crate) fn behind(self, proxies: &[Cidr], headers: &HeaderMap) -> Peer {
        let trusted = |ip: IpAddr| proxies.iter().any(|proxy| proxy.holds(ip));
        if !trusted(self.0.ip()) {
            return self;
        }
        let lines = headers.get_all("x-forwarded-for").iter().rev();
        let hops = lines.flat_map(|line| line.to_str().unwrap_or_default().rsplit(','));
        for hop in hops {
            match hop.trim().parse() {
                Ok(ip) if trusted(ip) => {}
                Ok(ip) => return Peer(SocketAddr::new(ip, 0)),
                // What does not read is not believed, nor what stands before it.
                Err(_) => return self,
            }
        }
        self
    }
}

/// A socket's place among those of its address; the place is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    /// Where from, if that is counted.
    address: Option<Address>,
    ip: IpAddr,
}

impl Place {
    /// Takes a place for a socket from `peer`; nothing when its address has as many as it may.
    pub(crate) fn take(shared: &Arc<Shared>, peer: Peer) -> Option<Place> {
        let loopback = peer.0.ip().to_canonical().is_loopback();
        let mut addresses = shared.addresses();
        let address = addresses.counts(loopback).then(|| peer.address());
        let room = address.is_none_or(|address| addresses.open(address));
        drop(addresses);
        let ip = peer.0.ip().to_canonical();
        room.then(|| Place { shared: shared.clone(), address, ip })
    }

    /// Where from.
    pub(crate) fn ip(&self) -> IpAddr {
        self.ip
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_proxy_that_is_believed_says_where_its_client_is() {
        let proxies: Vec<Cidr> = ["10.0.0.0/8", "::1"].map(|text| text.parse().unwrap()).to_vec();
        let seen = |from: &str, lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", line.parse().unwrap());
            }
            Peer(SocketAddr::new(from.parse().unwrap(), 5)).behind(&proxies, &headers).0.ip().to_string()
        };
        assert_eq!(seen("1.2.3.4", &["9.9.9.9"]), "1.2.3.4", "a stranger says what it likes");
        assert_eq!(seen("10.0.0.1", &["9.9.9.9"]), "9.9.9.9");
        assert_eq!(seen("10.0.0.1", &["6.6.6.6, 9.9.9.9"]), "9.9.9.9", "what the client wrote itself");
        assert_eq!(seen("::1", &["6.6.6.6", "9.9.9.9, 10.0.0.7"]), "9.9.9.9", "through two of ours");
        assert_eq!(seen("10.0.0.1", &["9.9.9.9, nonsense"]), "10.0.0.1");
        assert_eq!(seen("10.0.0.1", &[]), "10.0.0.1");
    }
}
