//! What people say about their fleet: prices, owners, accepted findings. Three small TOML files of
//! the store, applied to a report when it is made, so that a new price needs no new week.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::report::{ChangeRow, FindingRow, FindingState, Report, WEEK_H};

/// The file of prices, in the store.
pub const PRICES: &str = "settings/prices.toml";
/// The file of owners, in the store.
pub const OWNERS: &str = "settings/owners.toml";
/// The file of accepted findings, in the store.
pub const FINDINGS: &str = "settings/findings.toml";

/// A file that says nothing that can be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {what}; mend the file in the store and run the review again")]
pub struct SettingsError {
    /// The file's name in the store.
    pub file: &'static str,
    /// Its line, from 1.
    pub line: usize,
    /// The error.
    pub what: String,
}

/// Prices, owners and findings. The default has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    prices: Option<Prices>,
    owners: Owners,
    findings: Vec<Finding>,
}

/// `settings/prices.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prices {
    /// Such as `EUR`.
    currency: String,
    /// Price of a core-hour on machines that are not in the table.
    core_hour: Spanned<f64>,
    /// Price of a core-hour by type of machine.
    #[serde(default)]
    machines: BTreeMap<String, Spanned<f64>>,
}

/// `settings/owners.toml`: owners by the first characters of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Owners {
    service: BTreeMap<String, String>,
    image: BTreeMap<String, String>,
    procedure: BTreeMap<String, String>,
}

/// `settings/findings.toml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Findings {
    finding: Vec<Spanned<Finding>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Finding {
    id: String,
    service: String,
    image: String,
    /// Empty: the whole image.
    #[serde(default)]
    procedure: String,
    text: String,
    #[serde(default)]
    promised_cores: f64,
    week: String,
}

/// The subject of a finding, whose changes are measured each week.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The finding's id.
    pub id: String,
    /// The week in which it was accepted.
    pub week: String,
    /// The service.
    pub service: String,
    /// The image's name.
    pub image: String,
    /// The procedure; empty: the whole image.
    pub procedure: String,
}

impl Settings {
    /// Reads the texts of the three files; None: the store has no such file.
    ///
    /// # Errors
    /// Text that is no TOML, keys that are unknown, prices below 0, weeks that are none, two
    /// findings of one id.
    pub fn parse(
        prices: Option<&str>,
        owners: Option<&str>,
        findings: Option<&str>,
    ) -> Result<Self, SettingsError> {
        let prices = prices.map(priced).transpose()?;
        let owners = owners.map(|text| parsed(OWNERS, text)).transpose()?.unwrap_or_default();
        let findings = findings.map_or_else(|| Ok(Vec::new()), found)?;
        Ok(Self { prices, owners, findings })
    }

    /// The findings.
    #[must_use]
    pub fn watched(&self) -> Vec<Watched> {
        let of = |finding: &Finding| Watched {
            id: finding.id.clone(),
            week: finding.week.clone(),
            service: finding.service.clone(),
            image: finding.image.clone(),
            procedure: finding.procedure.clone(),
        };
        self.findings.iter().map(of).collect()
    }

    /// Fills in costs, owners and acceptances. Findings keep their [results](FindingRow::got).
    pub fn apply(&self, report: &mut Report) {
        let price = self.price_by_service(report);
        let price = |service: &str| price.get(service).copied();
        let owner = |service: &str, image: &str, procedure: &str| {
            self.owners.of(service, image, procedure).map(str::to_owned)
        };
        report.currency = self.prices.as_ref().map(|prices| prices.currency.clone());
        for row in &mut report.services {
            row.owner = owner(&row.service, "", "");
            row.money = price(&row.service).map(|price| price * row.core_hours);
        }
        report.fleet.money = report.services.iter().map(|row| row.money).sum();
        if self.prices.is_none() {
            report.fleet.money = None;
        }
        for row in &mut report.images {
            row.owner = owner(&row.service, &row.image, "");
            row.money = price(&row.service).map(|price| price * row.core_hours);
        }
        for row in &mut report.top {
            row.owner = owner(&row.service, &row.image, &row.procedure);
            row.money = price(&row.service).map(|price| price * row.core_hours);
        }
        for row in [&mut report.new, &mut report.gone, &mut report.seldom].into_iter().flatten() {
            row.owner = owner(&row.service, &row.image, &row.procedure);
            row.money = price(&row.service).map(|price| price * row.core_hours);
        }
        for row in [&mut report.changed, &mut report.between_weeks].into_iter().flatten() {
            row.owner = owner(&row.service, &row.image, &row.procedure);
            row.money = price(&row.service).map(|price| price * row.cores * WEEK_H);
            row.accepted = self.accepted(row, &report.week);
        }
        self.findings_of(report);
    }

    /// The price of a core-hour of each service: the mean over its machines.
    fn price_by_service(&self, report: &Report) -> BTreeMap<String, f64> {
        let Some(prices) = &self.prices else { return BTreeMap::new() };
        let mean = |machines: &BTreeMap<String, f64>| {
            let core_hours: f64 = machines.values().sum();
            if core_hours > 0.0 {
                machines.iter().map(|(of, hours)| prices.of(of) * hours).sum::<f64>() / core_hours
            } else {
                *prices.core_hour.get_ref()
            }
        };
        report.services.iter().map(|row| (row.service.clone(), mean(&row.machines))).collect()
    }

    /// Why a change was accepted, in this week or before it.
    fn accepted(&self, row: &ChangeRow, week: &str) -> Option<String> {
        let is_of = |finding: &&Finding| {
            (&finding.service, &finding.image, &finding.procedure)
                == (&row.service, &row.image, &row.procedure)
                && finding.week.as_str() <= week
        };
        let last = self.findings.iter().filter(is_of).max_by_key(|finding| &finding.week)?;
        Some(format!("{} ({}, {})", last.text, last.id, last.week))
    }

    fn findings_of(&self, report: &mut Report) {
        let mut got: BTreeMap<String, Vec<_>> =
            std::mem::take(&mut report.findings).into_iter().map(|row| (row.id, row.got)).collect();
        let row = |finding: &Finding| {
            let got = got.remove(&finding.id).unwrap_or_default();
            let finding = finding.clone();
            FindingRow {
                state: FindingState::of(finding.promised_cores, &got),
                id: finding.id,
                what: finding.text,
                service: finding.service,
                image: finding.image,
                procedure: finding.procedure,
                week: finding.week,
                promised_cores: finding.promised_cores,
                got,
            }
        };
        report.findings = self.findings.iter().map(row).collect();
    }
}

impl Prices {
    fn of(&self, machine: &str) -> f64 {
        *self.machines.get(machine).unwrap_or(&self.core_hour).get_ref()
    }
}

impl Owners {
    /// The owner by the longest prefix; of equal ones that of the procedure, then of the image. The
    /// prefix `""` owns what nobody else does.
    fn of(&self, service: &str, image: &str, procedure: &str) -> Option<&str> {
        [(&self.service, service), (&self.image, image), (&self.procedure, procedure)]
            .into_iter()
            .filter_map(|(owners, name)| {
                let prefixes = owners.iter().filter(|(prefix, _)| name.starts_with(*prefix));
                prefixes.max_by_key(|(prefix, _)| prefix.len())
            })
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, owner)| owner.as_str())
    }
}

fn priced(text: &str) -> Result<Prices, SettingsError> {
    let prices: Prices = parsed(PRICES, text)?;
    for price in prices.machines.values().chain([&prices.core_hour]) {
        if !price.get_ref().is_finite() || *price.get_ref() < 0.0 {
            let what =
                format!("{} is no price of a core-hour: a number from 0 on", price.get_ref());
            return Err(SettingsError {
                file: PRICES,
                line: line_of(text, price.span().start),
                what,
            });
        }
    }
    Ok(prices)
}

fn found(text: &str) -> Result<Vec<Finding>, SettingsError> {
    let findings = parsed::<Findings>(FINDINGS, text)?.finding;
    let mut ids = BTreeSet::new();
    for spanned in &findings {
        let finding = spanned.get_ref();
        let what = if !ids.insert(&finding.id) {
            format!("two findings have the id {:?}", finding.id)
        } else if !is_week(&finding.week) {
            format!("{:?} is no week of ISO 8601, such as \"2026-W47\"", finding.week)
        } else if !finding.promised_cores.is_finite() || finding.promised_cores < 0.0 {
            format!("{} are no cores to save: a number from 0 on", finding.promised_cores)
        } else {
            continue;
        };
        let line = line_of(text, spanned.span().start);
        return Err(SettingsError { file: FINDINGS, line, what });
    }
    Ok(findings.into_iter().map(Spanned::into_inner).collect())
}

/// Whether the text looks like `2026-W47`, so that texts are in the order of weeks.
fn is_week(text: &str) -> bool {
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    text.split_once("-W").is_some_and(|(year, week)| {
        digits(year, 4) && digits(week, 2) && ("01"..="53").contains(&week)
    })
}

fn parsed<T: DeserializeOwned>(file: &'static str, text: &str) -> Result<T, SettingsError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = line_of(text, at);
        let what = error.message().lines().collect::<Vec<_>>().join("; ");
        SettingsError { file, line, what: crate::escape::escape(&what).into_owned() }
    })
}

/// The line of a byte, from 1.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{GotWeek, ServiceRow, TopRow};

    const PRICED: &str = "currency = \"EUR\"\ncore_hour = 0.02\n[machines]\n\"arm64 N1\" = 0.01\n";

    fn error(prices: Option<&str>, owners: Option<&str>, findings: Option<&str>) -> String {
        Settings::parse(prices, owners, findings).unwrap_err().to_string()
    }

    #[test]
    fn money_is_core_hours_by_the_price_of_their_machines() {
        let mut report = Report::default();
        let machines = [("arm64 N1".to_owned(), 30.0), ("x86_64".to_owned(), 10.0)].into();
        report.services = vec![ServiceRow {
            service: "web".to_owned(),
            core_hours: 40.0,
            machines,
            ..ServiceRow::default()
        }];
        let row = |service: &str, core_hours| TopRow {
            service: service.to_owned(),
            core_hours,
            ..TopRow::default()
        };
        report.top = vec![row("web", 8.0), row("unknown", 1.0)];
        report.changed =
            vec![ChangeRow { service: "web".to_owned(), cores: -2.0, ..ChangeRow::default() }];
        Settings::parse(Some(PRICED), None, None).unwrap().apply(&mut report);
        let near = |money: Option<f64>, expected: f64| {
            assert!((money.unwrap() - expected).abs() < 1e-9, "{money:?} {expected}");
        };
        near(report.services[0].money, 0.5);
        near(report.fleet.money, 0.5);
        near(report.top[0].money, 0.1);
        assert_eq!(report.top[1].money, None);
        near(report.changed[0].money, -2.0 * 168.0 * 0.0125);
        assert_eq!(report.currency.as_deref(), Some("EUR"));
        Settings::default().apply(&mut report);
        assert_eq!((report.fleet.money, report.top[0].money, report.currency), (None, None, None));
    }

    #[test]
    fn the_longest_prefix_owns() {
        let text = "[service]\n\"\" = \"all\"\nweb = \"front\"\n[image]\nlibc = \"base\"\n\
                    libcrypto = \"security\"\n[procedure]\n\
                    \"absl::\" = \"absl\"\nlibc = \"same\"\n";
        let owners = Settings::parse(None, Some(text), None).unwrap().owners;
        for (service, image, procedure, owner) in [
            ("store", "main", "f", "all"),
            ("web-2", "main", "f", "front"),
            ("web-2", "libc.so.6", "f", "base"),
            ("web-2", "libcrypto.so.3", "f", "security"),
            ("web-2", "libcrypto.so.3", "absl::Mutex", "security"),
            ("web-2", "libc.so.6", "absl::Mutex", "absl"),
            ("web-2", "libc.so.6", "libc_start", "same"),
        ] {
            assert_eq!(owners.of(service, image, procedure), Some(owner), "{service} {image}");
        }
        assert_eq!(Owners::default().of("a", "b", "c"), None);
    }

    #[test]
    fn findings_are_accepted_from_their_week_on_and_keep_what_they_got() {
        let text = "[[finding]]\nid = \"F-1\"\nservice = \"web\"\nimage = \"main\"\n\
                    procedure = \"f\"\ntext = \"new checks\"\npromised_cores = 3\n\
                    week = \"2026-W45\"\n";
        let settings = Settings::parse(None, None, Some(text)).unwrap();
        let row = |procedure: &str| ChangeRow {
            service: "web".to_owned(),
            image: "main".to_owned(),
            procedure: procedure.to_owned(),
            ..ChangeRow::default()
        };
        let mut report = Report { week: "2026-W47".to_owned(), ..Report::default() };
        report.changed = vec![row("f"), row("g")];
        let got = GotWeek { week: "2026-W46".to_owned(), value: 3.1, low: 2.9, high: 3.3 };
        report.findings = vec![FindingRow {
            id: "F-1".to_owned(),
            got: vec![got.clone()],
            ..FindingRow::default()
        }];
        settings.apply(&mut report);
        assert_eq!(report.changed[0].accepted.as_deref(), Some("new checks (F-1, 2026-W45)"));
        assert_eq!(report.changed[1].accepted, None);
        assert_eq!(report.findings[0].got, [got]);
        assert_eq!(report.findings[0].state, FindingState::Kept);
        let mut earlier = Report { week: "2026-W44".to_owned(), ..report };
        settings.apply(&mut earlier);
        assert_eq!(earlier.changed[0].accepted, None);
    }

    #[test]
    fn errors_are_one_line_with_file_line_and_next_step() {
        for (text, says) in [
            (error(Some("currency = \"EUR\"\nprice = 1\n"), None, None), "line 2: unknown field"),
            (error(Some("currency = \"EUR\"\n"), None, None), "missing field `core_hour`"),
            (
                error(Some("currency = \"EUR\"\ncore_hour = -1\n"), None, None),
                "line 2: -1 is no price",
            ),
            (
                error(Some("currency = \"EUR\"\ncore_hour = nan\n"), None, None),
                "line 2: NaN is no price",
            ),
            (error(None, Some("[service]\nweb = 3\n"), None), "owners.toml, line 2: invalid type"),
            (error(None, Some("[team]\n"), None), "owners.toml, line 1: unknown field `team`"),
            (error(None, Some("[service\n"), None), "owners.toml, line 1: "),
        ] {
            assert!(text.contains(says) && !text.contains('\n'), "{text}");
            assert!(text.ends_with("; mend the file in the store and run the review again"));
        }
        let finding = |id: &str, cores: &str, week: &str| {
            format!(
                "[[finding]]\nid = \"{id}\"\nservice = \"a\"\nimage = \"b\"\ntext = \"c\"\n\
                 promised_cores = {cores}\nweek = \"{week}\"\n"
            )
        };
        let two = finding("A", "1", "2026-W01") + &finding("A", "1", "2026-W02");
        for (text, says) in [
            (two, "findings.toml, line 8: two findings have the id \"A\""),
            (finding("A", "1", "2026-47"), "line 1: \"2026-47\" is no week"),
            (finding("A", "1", "2026-W54"), "line 1: \"2026-W54\" is no week"),
            (finding("A", "-1", "2026-W02"), "line 1: -1 are no cores"),
            ("[[finding]]\nid = 3\n".to_owned(), "line 2: invalid type"),
        ] {
            let text = error(None, None, Some(&text));
            assert!(text.contains(says) && !text.contains('\n'), "{text}");
        }
    }
}
