//! A fleet whose truth is known: facts of hosts, roll-outs and planted changes.
#![forbid(unsafe_code)]
