//! `dcpi-fleet compare`: a gate for deploys.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};
use weeks::{Asked, Comparison, compare};

use crate::out::{complain, say};
use crate::store_option::{InStore, now_s};

/// Longest time for a webhook's answer.
const WEBHOOK_MAX: Duration = Duration::from_secs(30);
/// Exit codes.
const COSTS: u8 = 1;
const UNKNOWN: u8 = 3;

/// `dcpi-fleet compare`.
#[derive(Args, Debug)]
#[command(after_help = "\
Roll the new build out to some hosts on different days, while others keep the old one; let dcpi \
push and dcpi-fleet ingest run; then ask. Cores are compared on the hosts that ran both builds, \
and the load of each day is taken from those that did not change on it.

The file of rules (TOML) has any of: cores_percent, the most per cent of the service's cores that \
the build may cost (default 1); procedure_percent, the most that one procedure's part of the \
service's time may grow, in per cent of the service's time (default 1); hosts, the fewest hosts \
that ran both (default 3); unknown, \"pass\" or \"fail\", what to do where nothing can be said \
(default \"pass\").

Exit codes: 0 it keeps to the rules; 1 it certainly costs more; 2 could not be asked; 3 nothing \
can be said, and unknown is \"fail\".")]
pub struct Compare {
    #[command(flatten)]
    store: InStore,
    /// The week of the roll-out [default: this week]
    #[arg(long, value_name = "WEEK")]
    week: Option<store::Week>,
    /// The service, as reviews name it
    #[arg(long, value_name = "NAME")]
    service: String,
    /// The old build and the new one: first characters of their ids
    #[arg(long, value_names = ["OLD", "NEW"], num_args = 2, required = true)]
    build: Vec<String>,
    /// File of rules
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Send the answer as JSON to this address (POST)
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
}

#[derive(Copy, Clone, Debug, ValueEnum)]
enum Form {
    /// For people
    Text,
    /// One object
    Json,
}

/// Limits on the cost of a build.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Rules {
    cores_percent: f64,
    procedure_percent: f64,
    hosts: usize,
    unknown: Unknown,
}

impl Default for Rules {
    fn default() -> Self {
        Self { cores_percent: 1.0, procedure_percent: 1.0, hosts: 3, unknown: Unknown::Pass }
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unknown {
    Pass,
    Fail,
}

/// The verdict on a build.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    /// It costs more than the rules allow, and that not by chance.
    Costs(Vec<String>),
    Keeps,
    /// No verdict is possible.
    Unknown(&'static str),
}

impl Rules {
    fn read(path: &PathBuf) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}; see --rules", path.display()))?;
        let rules: Self = toml::from_str(&text).map_err(|error| {
            let why = error.message().lines().next().unwrap_or_default().to_owned();
            format!("{}: {why}; dcpi-fleet compare --help has the rules", path.display())
        })?;
        let numbers = [rules.cores_percent, rules.procedure_percent];
        if numbers.iter().any(|number| !number.is_finite() || *number < 0.0) || rules.hosts < 1 {
            return Err(format!("{}: per cents are 0 or more, hosts 1 or more", path.display()));
        }
        Ok(rules)
    }

    fn judge(&self, of: &Comparison) -> Verdict {
        let mut costs = Vec::new();
        if let Ok(cores) = &of.cores
            && cores.low * 100.0 > self.cores_percent
            && cores.changed >= self.hosts
        {
            costs.push(format!("{} of the service's cores", percent(cores.low)));
        }
        for change in &of.procedures {
            // In per cent of the service's time.
            let least = change.core_s * change.low / change.value / self.service_s(of);
            if change.marked > 0 && change.value > 0.0 && least * 100.0 > self.procedure_percent {
                costs.push(format!("{} in {}", percent(least), change.procedure));
            }
        }
        match (&of.cores, of.hosts) {
            _ if !costs.is_empty() => Verdict::Costs(costs),
            (_, [both, ..]) if both < self.hosts => {
                Verdict::Unknown("too few hosts ran both builds")
            }
            (Err(judge::cores::Untold::Hosts), _) => {
                Verdict::Unknown("too few hosts ran both builds for a day each")
            }
            (Err(judge::cores::Untold::SameDay), _) => Verdict::Unknown(
                "the hosts changed all on one day: what else happened on that day is in it",
            ),
            (Ok(_), _) => Verdict::Keeps,
        }
    }

    /// Core-seconds of the service in the time that changes are of.
    fn service_s(&self, of: &Comparison) -> f64 {
        of.service_core_s.max(f64::MIN_POSITIVE)
    }
}

/// # Errors
/// One line, with the next step.
pub async fn run(args: &Compare) -> Result<u8, String> {
    let rules = args.rules.as_ref().map(Rules::read).transpose()?.unwrap_or_default();
    let store = args.store.open()?;
    let [old, new] = args.build.as_slice() else { return Err("--build OLD NEW".to_owned()) };
    let asked = Asked {
        week: args.week.unwrap_or_else(|| store::Week::of(now_s())),
        service: args.service.clone(),
        builds: [old.clone(), new.clone()],
        memory_bytes: 1 << 30,
    };
    let of = compare(&store, &asked).await.map_err(|error| error.to_string())?;
    let verdict = rules.judge(&of);
    let answer = object(args, &of, &verdict);
    match args.format {
        Form::Json => say!("{answer}"),
        Form::Text => text(args, &of, &verdict),
    }
    if let Some(url) = &args.webhook
        && let Err(why) = send(url, &answer).await
    {
        // The verdict is what a gate waits for.
        match verdict {
            Verdict::Costs(_) => complain!("dcpi-fleet: {why}"),
            _ => return Err(why),
        }
    }
    Ok(match verdict {
        Verdict::Costs(_) => COSTS,
        Verdict::Unknown(_) if rules.unknown == Unknown::Fail => UNKNOWN,
        Verdict::Unknown(_) | Verdict::Keeps => 0,
    })
}

fn text(args: &Compare, of: &Comparison, verdict: &Verdict) {
    let [old, new] = &of.builds;
    let [both, only_old, only_new] = of.hosts;
    say!("{}: {} {old} to {new}", args.service, of.image);
    say!("hosts    {both} ran both, {only_old} only the old, {only_new} only the new");
    match &of.cores {
        Ok(cost) => say!(
            "cores    {} ({} to {}), of {:.3} busy in the mean",
            percent(cost.value),
            percent(cost.low),
            percent(cost.high),
            of.busy_cores
        ),
        Err(_) => say!("cores    not known, of {:.3} busy in the mean", of.busy_cores),
    }
    if let Some(change) = &of.image_change {
        let interval = format!("{} to {}", percent(change.low), percent(change.high));
        say!("image    {} of its part of the service's time ({interval})", percent(change.value));
    }
    for change in of.procedures.iter().filter(|change| change.marked > 0) {
        let interval = format!("{} to {}", percent(change.low), percent(change.high));
        say!("         {} in {} ({interval})", percent(change.value), change.procedure);
    }
    match verdict {
        Verdict::Costs(what) => say!("verdict  costs: at least {}", what.join(", ")),
        Verdict::Keeps => say!("verdict  keeps to the rules"),
        Verdict::Unknown(why) => say!("verdict  not known: {why}"),
    }
}

fn object(args: &Compare, of: &Comparison, verdict: &Verdict) -> Value {
    let estimate = |value: f64, low: f64, high: f64| {
        let high = finite(high);
        json!({ "value": value, "low": low, "high": high })
    };
    let change = |change: &tables::Change| {
        json!({
            "procedure": change.procedure,
            "change": estimate(change.value, change.low, change.high),
            "q": change.q,
            "hosts": change.hosts,
        })
    };
    let (name, why) = match verdict {
        Verdict::Costs(what) => ("costs", what.clone()),
        Verdict::Keeps => ("keeps", Vec::new()),
        Verdict::Unknown(why) => ("unknown", vec![(*why).to_owned()]),
    };
    let [both, only_old, only_new] = of.hosts;
    let [old, new] = &of.builds;
    json!({
        "schema": { "name": "dcpi-fleet-compare", "version": 1 },
        "service": args.service,
        "image": of.image,
        "build_old": old,
        "build_new": new,
        "hosts": { "both": both, "old": only_old, "new": only_new },
        "cores": of.cores.as_ref().ok().map(|cost| estimate(cost.value, cost.low, cost.high)),
        "busy_cores": of.busy_cores,
        "image_change": of.image_change.as_ref().map(change),
        "procedures": of.procedures.iter().filter(|of| of.marked > 0).map(change)
            .collect::<Vec<_>>(),
        "verdict": name,
        "why": why,
    })
}

/// JSON has no infinity.
fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

fn percent(share: f64) -> String {
    format!("{:+.2} %", share * 100.0)
}

async fn send(url: &str, answer: &Value) -> Result<(), String> {
    let failed = |why: String| format!("the answer did not get to {url}: {why}; see --webhook");
    let client = reqwest::Client::builder().timeout(WEBHOOK_MAX).build();
    let client = client.map_err(|error| failed(error.to_string()))?;
    let request = client.post(url).header("content-type", "application/json");
    let sent = request.body(answer.to_string()).send().await;
    let status = sent.map_err(|error| failed(error.without_url().to_string()))?.status();
    if status.is_success() { Ok(()) } else { Err(failed(format!("it answered {status}"))) }
}
