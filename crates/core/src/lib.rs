//! The rules of Tenure: leases, presence, event streams and the client's link, without I/O, clock or randomness
