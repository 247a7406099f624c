//! SQL over the tables of a store: DataFusion in this process, or a cluster.
#![forbid(unsafe_code)]
