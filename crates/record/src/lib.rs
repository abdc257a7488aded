//! Typed events, counters and run directories.
