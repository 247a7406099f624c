//! What of a difference between builds, or between weeks, is chance; pure.
#![forbid(unsafe_code)]
