//! The Rust SDK of Tenure: sessions that resume by themselves
