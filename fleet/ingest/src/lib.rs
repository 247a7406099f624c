//! From the epochs of hosts to facts: samples of procedures by service, build and host.
#![forbid(unsafe_code)]
