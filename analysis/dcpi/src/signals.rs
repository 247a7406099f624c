//! Signals as messages.

use std::io;
use std::sync::mpsc::{Receiver, channel};

use signal_hook::iterator::Signals;

/// From now on these signals do not end the process, but are reported here.
pub fn hear(signals: &[i32]) -> io::Result<Receiver<i32>> {
    let mut signals = Signals::new(signals)?;
    let (sender, heard) = channel();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    })?;
    Ok(heard)
}
