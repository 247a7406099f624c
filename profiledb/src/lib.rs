//! profiledb
