//! `dcpi doctor` as text, JSON and CSV.

use std::io::{self, Write};

use super::table::{Cell, Colour, Table};
use super::text::note;
use super::{Report, Style};

crate::fields! {
    /// What this host allows, and what the database lacks.
    #[derive(Debug)]
    pub struct DoctorReport {
        pub checks (rows): Vec<DoctorCheck>;
    }

    /// A check.
    #[derive(Clone, Debug)]
    pub struct DoctorCheck {
        /// what was looked at
        pub name: String => "name";
        /// true: nothing is to be done
        pub ok: bool => "ok";
        /// what was found
        pub found: String => "found";
        /// what to do about it; absent where it is well
        pub remedy (maybe): Option<String> => "remedy";
    }
}

impl DoctorReport {
    /// Whether nothing is to be done.
    pub fn is_well(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }
}

impl Report for DoctorReport {
    const NAME: &'static str = "doctor";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::default();
        ["", "check"].into_iter().for_each(|title| table.words(title));
        table.texts("found");
        for check in &self.checks {
            let word = if check.ok { "ok" } else { "no" };
            let cells = [word, &check.name, &check.found].map(Cell::name);
            table.coloured(cells.into(), (!check.ok).then_some(Colour::Warm));
        }
        table.write(style, out)?;
        let remedies: Vec<String> = self
            .checks
            .iter()
            .filter_map(|check| Some(format!("{}: {}", check.name, check.remedy.as_ref()?)))
            .collect();
        if !remedies.is_empty() {
            writeln!(out)?;
        }
        remedies.iter().try_for_each(|remedy| note(style, out, remedy))
    }

    fn json(&self) -> &Self {
        self
    }
}
