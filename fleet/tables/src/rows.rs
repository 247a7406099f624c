//! The rows of each table.

use std::cmp::Ordering;

use crate::columns::{Column, Columns};

/// A table: its name in manifests and in SQL.
pub trait Row: Clone + Send + 'static {
    /// The table's name.
    const TABLE: Table;
    /// The columns, in order, each empty.
    fn columns() -> Vec<(&'static str, Column)>;
    /// Adds the row to columns of the table.
    fn add_to(&self, columns: &mut [Column]);
    /// The row of that number; None past the end, or where columns are of another table.
    fn of(columns: &Columns, row: usize) -> Option<Self>;
}

/// Declares the rows of tables.
macro_rules! rows {
    ($(
        $(#[$about:meta])*
        $row:ident of $table:ident $name:literal {
            $($(#[$field_about:meta])* $field:ident: $type:ty,)*
        }
    )*) => {
        /// A table.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Table { $(#[doc = concat!("Of [`", stringify!($row), "`].")] $table,)* }

        impl Table {
            /// Every table.
            pub const ALL: &'static [Self] = &[$(Self::$table,)*];

            /// The name in manifests and in SQL.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$table => $name,)* }
            }

            /// The columns, in order, each empty.
            #[must_use]
            pub fn columns(self) -> Vec<(&'static str, Column)> {
                match self { $(Self::$table => <$row as Row>::columns(),)* }
            }
        }

        $(
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $row { $($(#[$field_about])* pub $field: $type,)* }

        impl Row for $row {
            const TABLE: Table = Table::$table;

            fn columns() -> Vec<(&'static str, Column)> {
                vec![$((stringify!($field), <$type as Value>::column()),)*]
            }

            fn add_to(&self, columns: &mut [Column]) {
                let mut columns = columns.iter_mut();
                $(if let Some(column) = columns.next() { self.$field.add_to(column); })*
            }

            fn of(columns: &Columns, row: usize) -> Option<Self> {
                Some(Self { $($field: Value::of(columns.get(stringify!($field))?, row)?,)* })
            }
        }
        )*
    };
}

rows! {
    /// Samples of a procedure in a service, a build and on a host, in a week.
    Fact of Facts "facts" {
        /// Number of the service ([`Service`]).
        service: i64,
        /// Number of the image's name ([`Build`]).
        image: i64,
        /// Number of the image's build ([`Build`]).
        build: i64,
        /// Number of the procedure ([`Name`]).
        procedure: i64,
        /// Number of the host's name ([`EpochRow`]).
        host: i64,
        /// Samples.
        samples: i64,
        /// Events that one sample stands for, in the event's unit (cpu-clock: ns): the period
        /// divided by the share of the time in which the event counted; of several, the mean.
        weight: f64,
    }

    /// Samples of an image in a service, a build and on a host, in a day.
    Load of Loads "loads" {
        /// Number of the service.
        service: i64,
        /// Number of the image's name.
        image: i64,
        /// Number of the image's build.
        build: i64,
        /// Number of the host's name.
        host: i64,
        /// Days since 1970 UTC.
        day: i64,
        /// Samples.
        samples: i64,
        /// Events that one sample stands for.
        weight: f64,
    }

    /// An epoch of a host: its machine, and the account of its samples. There is a row for each
    /// event.
    EpochRow of Epochs "epochs" {
        /// Number of the host's name.
        host: i64,
        /// The host's name.
        name: String,
        /// Begin, seconds since 1970 UTC.
        begin_s: i64,
        /// End, seconds since 1970 UTC.
        end_s: i64,
        /// Seconds by which the host's clock is ahead at least: the epoch ended so long after it
        /// was put into the store. 0: not seen to be ahead.
        ahead_s: i64,
        /// The machine: instruction set and CPU model.
        machine: String,
        /// CPUs that were sampled.
        cpus: i64,
        /// Samples taken.
        taken: i64,
        /// Samples in facts.
        facts: i64,
        /// Samples of the idle loop.
        idle: i64,
        /// Samples of unknown code.
        unresolved: i64,
        /// Samples that were dropped.
        lost: i64,
        /// Events that a sample of this epoch stands for.
        weight: f64,
    }

    /// Samples of an epoch that are of unknown code, or were dropped, by reason.
    Missed of Missed "missed" {
        /// Number of the host's name.
        host: i64,
        /// `unresolved` or `lost`.
        fate: String,
        /// Why, as in the status of dcpid.
        reason: String,
        /// Samples.
        samples: i64,
    }

    /// The name of a procedure.
    Name of Names "names" {
        /// The procedure's number: [`id`](crate::id) of the names of image and procedure.
        procedure: i64,
        /// Number of the image's name.
        image: i64,
        /// The name; empty: samples of the image that no symbol names.
        name: String,
    }

    /// A service.
    Service of Services "services" {
        /// The service's number: [`id`](crate::id) of its name.
        service: i64,
        /// Its name: label, or unit, or `[kernel]`, or `[other]`.
        name: String,
    }

    /// A build of an image.
    Build of Builds "builds" {
        /// The build's number: [`id`](crate::id) of its name and text.
        build: i64,
        /// Number of the image's name.
        image: i64,
        /// The image's name.
        image_name: String,
        /// The build's id, as in `dcpi prof --format json`.
        text: String,
        /// Where a host has it.
        path: String,
        /// Where its procedures' names are from: 0 none, 1 the epoch, 2 an excerpt of the file, 3
        /// the file.
        quality: i64,
        /// First seen, seconds since 1970 UTC.
        first_s: i64,
        /// Last seen, seconds since 1970 UTC.
        last_s: i64,
    }

    /// A procedure of a service in a week, of those with the most time.
    Head of Heads "heads" {
        /// The service's name.
        service: String,
        /// The image's name.
        image: String,
        /// The procedure's name.
        procedure: String,
        /// The service's number.
        service_id: i64,
        /// The procedure's number.
        id: i64,
        /// The type of machine.
        machine: String,
        /// Core-seconds on such machines.
        core_s: f64,
        /// Samples.
        samples: i64,
        /// Hosts of that type that had samples.
        hosts: i64,
    }

    /// A change of a procedure, of an image or a service, in a week.
    Change of Changes "changes" {
        /// `build` between builds in a week, `week` from the week before, `new`, `gone`.
        kind: String,
        /// The service's name.
        service: String,
        /// The image's name.
        image: String,
        /// The procedure's name; empty: the whole image.
        procedure: String,
        /// The builds' ids, of `build`.
        build_old: String,
        /// The later build.
        build_new: String,
        /// Relative change of the share of the service's time; 0.02: 2 % more.
        value: f64,
        /// Lower end of its interval.
        low: f64,
        /// Upper end of its interval.
        high: f64,
        /// Probability of such a change by chance, corrected for all that was compared.
        q: f64,
        /// Hosts compared.
        hosts: i64,
        /// Core-seconds a week more, at the service's present load.
        core_s: f64,
        /// 1: more than chance.
        marked: i64,
        /// Procedures of the image whose changes cancel this one, separated by line ends: time
        /// moved between them, as when code is inlined.
        moved: String,
        /// Of `build`: the share of hosts that changed on the day on which most did. What else
        /// happened on that day is in the change.
        same_day: f64,
    }

    /// A pair of a comparison: a host that ran both builds of an image in a week, or a service in
    /// this week and the one before.
    Pair of Pairs "pairs" {
        /// Number of the service.
        service: i64,
        /// Number of the image's name; 0: weeks are compared.
        image: i64,
        /// Number of the old build; 0: the week before.
        build_old: i64,
        /// Number of the new build; 0: the week.
        build_new: i64,
        /// Number of the host's name.
        host: i64,
        /// Events of the service while the old build ran; on days on which both ran, as much as the
        /// old build's share of the image's samples.
        y_old: f64,
        /// The same of the new build.
        y_new: f64,
        /// Samples of the service while the old build ran.
        samples_old: f64,
        /// Samples of the service while the new build ran.
        samples_new: f64,
        /// The pair's weight: `judge::weight` of its samples.
        w: f64,
    }

    /// Sums over pairs, of one procedure: see `judge::Sums`. Never stored.
    PairSum of PairSums "pair_sums" {
        /// Number of the image's name.
        image: i64,
        /// Number of the old build.
        build_old: i64,
        /// Number of the new build.
        build_new: i64,
        /// The procedure's number.
        procedure: i64,
        /// `sum(w d)`.
        wd: f64,
        /// `sum(w^2 d)`.
        w2d: f64,
        /// `sum(w^2 d^2)`.
        w2d2: f64,
        /// `sum(w x_old/y_old)`.
        w_old: f64,
        /// Hosts with samples of it.
        hosts: i64,
        /// Samples on the old side.
        samples_old: i64,
        /// Samples on the new side.
        samples_new: i64,
    }

    /// Samples of a procedure in a service, a build and on machines of one type, in a week.
    Rollup of Rollups "rollups" {
        /// Number of the service.
        service: i64,
        /// Number of the image's name.
        image: i64,
        /// Number of the build.
        build: i64,
        /// The procedure's number.
        procedure: i64,
        /// The type of machine.
        machine: String,
        /// Samples.
        samples: i64,
        /// Core-seconds; of other events than time, 1e9 events.
        core_s: f64,
        /// Hosts with samples of that build.
        hosts: i64,
    }

    /// A host in a week.
    HostWeek of HostWeeks "host_weeks" {
        /// Number of the host's name.
        host: i64,
        /// Its name.
        name: String,
        /// The machine: instruction set and CPU model; of several, the last.
        machine: String,
        /// CPUs.
        cpus: i64,
        /// Epochs.
        epochs: i64,
        /// Begin of the first epoch, seconds since 1970 UTC.
        begin_s: i64,
        /// End of the last.
        end_s: i64,
        /// Seconds of all epochs; what overlaps counts once.
        covered_s: i64,
        /// As in [`EpochRow`].
        ahead_s: i64,
        /// Core-seconds of facts.
        core_s: f64,
        /// Samples taken.
        taken: i64,
        /// Samples in facts.
        facts: i64,
        /// Samples of the idle loop.
        idle: i64,
        /// Samples of unknown code.
        unresolved: i64,
        /// Samples that were dropped.
        lost: i64,
    }

    /// An image of a service in a week.
    ImageWeek of ImageWeeks "image_weeks" {
        /// The service's name.
        service: String,
        /// The image's name; empty: the whole service.
        image: String,
        /// The type of machine.
        machine: String,
        /// Core-seconds.
        core_s: f64,
        /// Samples.
        samples: i64,
        /// Hosts.
        hosts: i64,
    }

    /// A build of an image in a service, where there are several.
    Skew of Skews "skews" {
        /// The service's name.
        service: String,
        /// The image's name.
        image: String,
        /// The build's id.
        build: String,
        /// Hosts on which it was the last that ran.
        hosts: i64,
        /// Core-seconds.
        core_s: f64,
        /// First seen in the fleet, seconds since 1970 UTC.
        first_s: i64,
        /// Last seen.
        last_s: i64,
        /// Hosts that ran the build before it, too.
        hosts_before: i64,
        /// Why it was not compared with the build before: `hosts`, `small`, `new`, `nonsense`;
        /// empty where it was, and for the first build.
        untested: String,
    }

    /// The numbers of [`Head`], for trends. Never stored.
    HeadTime of HeadTimes "head_times" {
        /// The service's number.
        service_id: i64,
        /// The procedure's number.
        id: i64,
        /// Core-seconds.
        core_s: f64,
    }

    /// How much of a service's time on a host is unlike that of its fellows.
    HostShare of HostShares "host_shares" {
        /// The service's name.
        service: String,
        /// The host's name.
        host: String,
        /// Core-seconds of the service on the host.
        core_s: f64,
        /// Half of the sum of absolute differences between the host's shares and those of its
        /// fellows' median, 0..=1.
        distance: f64,
        /// The same that is expected by chance and the typical spread.
        expected: f64,
        /// The procedure that differs most.
        procedure: String,
        /// Probability of such a distance by chance, corrected for all hosts.
        q: f64,
    }
}

impl Build {
    /// Merges another row of the build; the result does not depend on their order.
    pub fn absorb(&mut self, first_s: i64, last_s: i64, quality: i64, path: String) {
        self.first_s = self.first_s.min(first_s);
        self.last_s = self.last_s.max(last_s);
        self.quality = self.quality.max(quality);
        if path < self.path {
            self.path = path;
        }
    }
}

impl EpochRow {
    /// The order of rows: by host and time, and for one order only, by all that differs.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        let key = |of: &Self| {
            let counts = [of.taken, of.facts, of.idle, of.unresolved, of.lost];
            (of.host, of.begin_s, of.end_s, counts, of.cpus, of.ahead_s)
        };
        key(self)
            .cmp(&key(other))
            .then_with(|| self.machine.cmp(&other.machine))
            .then_with(|| self.weight.total_cmp(&other.weight))
    }
}

/// A value of a column.
trait Value: Sized {
    fn column() -> Column;
    fn add_to(&self, column: &mut Column);
    fn of(column: &Column, row: usize) -> Option<Self>;
}

impl Value for i64 {
    fn column() -> Column {
        Column::Integers(Vec::new())
    }

    fn add_to(&self, column: &mut Column) {
        if let Column::Integers(values) = column {
            values.push(*self);
        }
    }

    fn of(column: &Column, row: usize) -> Option<Self> {
        let Column::Integers(values) = column else { return None };
        values.get(row).copied()
    }
}

impl Value for f64 {
    fn column() -> Column {
        Column::Doubles(Vec::new())
    }

    fn add_to(&self, column: &mut Column) {
        if let Column::Doubles(values) = column {
            values.push(*self);
        }
    }

    fn of(column: &Column, row: usize) -> Option<Self> {
        let Column::Doubles(values) = column else { return None };
        values.get(row).copied()
    }
}

impl Value for String {
    fn column() -> Column {
        Column::Texts(Vec::new())
    }

    fn add_to(&self, column: &mut Column) {
        if let Column::Texts(values) = column {
            values.push(self.clone());
        }
    }

    fn of(column: &Column, row: usize) -> Option<Self> {
        let Column::Texts(values) = column else { return None };
        values.get(row).cloned()
    }
}
