//! Options that choose among what samples are kept apart by.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use query::load::Question;
use query::scope::{Dimension, ScopeChoice};

/// Label, unit and process of samples that were kept apart; without any of these options,
/// samples of all scopes are summed up.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeArgs {
    /// Only samples of runs with this label (dcpilabel LABEL COMMAND)
    #[arg(long, value_name = "LABEL", value_parser = NonEmptyStringValueParser::new())]
    pub label: Option<String>,
    /// Only samples of this systemd unit, or of containers of this name or image (dcpid --by-unit)
    #[arg(long, value_name = "UNIT", value_parser = NonEmptyStringValueParser::new())]
    pub unit: Option<String>,
    /// Only samples of containers of this name, id or image
    #[arg(long, value_name = "CONTAINER", value_parser = NonEmptyStringValueParser::new())]
    pub container: Option<String>,
    /// Only samples of containers of this pod of Kubernetes: POD or NAMESPACE/POD
    #[arg(long, value_name = "POD", value_parser = NonEmptyStringValueParser::new())]
    pub pod: Option<String>,
    /// Only samples of containers of pods in this namespace of Kubernetes
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub namespace: Option<String>,
    /// Only samples of this process: its call stacks, and in reports that read none the images
    /// whose samples are kept apart by process (dcpid --per-process IMAGE)
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

impl ScopeArgs {
    /// The scopes whose samples are read.
    pub fn choice(&self) -> ScopeChoice {
        ScopeChoice {
            label: self.label.clone(),
            unit: self.unit.clone(),
            container: self.container.clone(),
            pod: self.pod.clone(),
            namespace: self.namespace.clone(),
            pid: self.pid,
            ..ScopeChoice::default()
        }
    }
}

/// Command and thread of call stacks: options of the commands that read them.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct OfThreads {
    /// Only call stacks of processes of this command, as ps -o comm shows it
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub command: Option<String>,
    /// Only call stacks of threads of this name
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub thread: Option<String>,
    /// Only call stacks of these threads, by number, separated by commas
    #[arg(
        long = "tid",
        value_name = "TID",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub tids: Vec<u32>,
    /// Only call stacks of threads for which the program had set this label (Go) or attribute
    /// (OpenTelemetry); may be repeated
    #[arg(long = "attribute", value_name = "KEY=VALUE", value_parser = parse_attribute)]
    pub attributes: Vec<String>,
}

/// `KEY=VALUE`.
fn parse_attribute(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.is_empty() => Ok(text.to_owned()),
        _ => Err("must be KEY=VALUE, such as route=/checkout".to_owned()),
    }
}

impl OfThreads {
    /// The question for the call stacks of these threads alone.
    pub fn narrow(&self, mut question: Question) -> Question {
        question.whose.command.clone_from(&self.command);
        question.whose.thread.clone_from(&self.thread);
        question.whose.tids.clone_from(&self.tids);
        question.whose.attributes.clone_from(&self.attributes);
        question
    }
}

/// The parts of a scope, by which dcpid keeps samples apart.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// A row per label.
    Label,
    /// A row per systemd unit or container.
    Unit,
    /// A row per container
    Container,
    /// A row per pod of containers
    Pod,
    /// A row per namespace of pods
    Namespace,
    /// A row per process, from call stacks; from samples where dcpid kept processes apart
    Pid,
    /// A row per command, from call stacks
    Command,
    /// A row per name of threads of a process, from call stacks
    Thread,
}

impl From<By> for Dimension {
    fn from(by: By) -> Self {
        match by {
            By::Label => Self::Label,
            By::Unit => Self::Unit,
            By::Container => Self::Container,
            By::Pod => Self::Pod,
            By::Namespace => Self::Namespace,
            By::Pid => Self::Pid,
            By::Command => Self::Command,
            By::Thread => Self::Thread,
        }
    }
}
