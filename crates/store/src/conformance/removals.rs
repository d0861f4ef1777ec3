//! What removals promise.
