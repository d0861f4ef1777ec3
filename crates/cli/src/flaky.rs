//! A proxy that breaks connections.
