//! What readers promise.
