//! The tenure command
