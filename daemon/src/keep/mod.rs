//! What is kept on disk: the thread that writes the database, the librarian that copies code, and
//! the catalogue of what was learnt of files.

pub mod database_thread;
pub mod file_catalogue;
pub mod librarian;
