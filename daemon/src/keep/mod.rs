//! What is kept on disk: the thread that writes the database, the librarian that copies code, the
//! catalogue of what was learnt of files, and the processor as it was measured.

pub mod database_thread;
pub mod file_catalogue;
pub mod librarian;
pub mod measured_machine;
