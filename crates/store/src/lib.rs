//! Durable state of a broker: the Store trait, its memory model and the SQLite engine
