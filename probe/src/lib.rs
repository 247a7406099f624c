//! What a processor is, measured by code whose instructions are known: the step of its clock, what
//! events cost, sizes and latencies of caches and TLBs.
