//! Reading made-up memory.
