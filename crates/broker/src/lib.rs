//! The Tenure server: sockets, timers, the store's writer, health and metrics around core's rules
