//! The scope of a report: a labelled run, a systemd unit or container, a process, a thread.

use std::collections::BTreeSet;

use model::Thread;
use profiledb::{Container, Database, EpochId, Scope};

use crate::error::AnalysisError;

/// A choice among samples that were kept apart; without any part, samples of all scopes are summed
/// up. Samples by place are kept by label, unit, and process of some images; call stacks by all of
/// these dimensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeChoice {
    /// Only samples of runs with this label.
    pub label: Option<String>,
    /// Only samples of this systemd unit or container.
    pub unit: Option<String>,
    /// Only samples of containers of this name or image.
    pub container: Option<String>,
    /// Only samples of containers of this pod.
    pub pod: Option<String>,
    /// Only samples of containers of pods in this namespace.
    pub namespace: Option<String>,
    /// Only samples of this process number: call stacks, and images that are kept apart by process.
    pub pid: Option<u32>,
    /// Only call stacks of processes with this name of their first thread.
    pub command: Option<String>,
    /// Only call stacks of threads with this name.
    pub thread: Option<String>,
    /// Only call stacks of threads with one of these numbers; of all, if there are none.
    pub tids: Vec<u32>,
    /// Only call stacks of threads for which the program had set all of these, `KEY=VALUE`.
    pub attributes: Vec<String>,
}

/// The parts of a scope, by which dcpid keeps samples apart.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// By label.
    Label,
    /// By systemd unit or container.
    Unit,
    /// By container.
    Container,
    /// By pod of containers.
    Pod,
    /// By namespace of pods.
    Namespace,
    /// By process.
    Pid,
    /// By command: the name of the process's first thread.
    Command,
    /// By name of the thread.
    Thread,
    /// By number of the thread.
    Tid,
    /// By what the program had set for the thread.
    Attribute,
}

/// One value of a dimension; none: samples that were not kept apart by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A label.
    Label(Option<String>),
    /// A unit.
    Unit(Option<String>),
    /// A container, with its image.
    Container(Option<String>),
    /// A pod, with its namespace.
    Pod(Option<String>),
    /// A namespace.
    Namespace(Option<String>),
    /// A process.
    Pid(Option<u32>),
    /// A command.
    Command(Option<String>),
    /// A thread's name.
    Thread(Option<String>),
    /// Numbers of threads.
    Tids(Vec<u32>),
    /// Attributes of a thread, `KEY=VALUE`.
    Attributes(Vec<String>),
}

impl Dimension {
    /// The value of this dimension in a scope.
    pub fn of(self, scope: &Scope) -> Part {
        match self {
            Self::Label => Part::Label(scope.label.clone()),
            Self::Unit => Part::Unit(scope.unit.clone()),
            Self::Container => Part::Container(scope.container().map(Container::shown)),
            Self::Pod => Part::Pod(scope.container().and_then(Container::shown_pod)),
            Self::Namespace => Part::Namespace(scope.namespace().map(str::to_owned)),
            Self::Pid => Part::Pid(scope.pid),
            Self::Command => Part::Command(None),
            Self::Thread => Part::Thread(None),
            Self::Tid => Part::Tids(Vec::new()),
            Self::Attribute => Part::Attributes(Vec::new()),
        }
    }

    /// The value of this dimension in the thread of a call stack.
    pub fn of_thread(self, thread: &Thread) -> Part {
        let some = |name: &String| (!name.is_empty()).then(|| name.clone());
        match self {
            Self::Label => Part::Label(None),
            Self::Unit => Part::Unit(None),
            Self::Container => Part::Container(None),
            Self::Pod => Part::Pod(None),
            Self::Namespace => Part::Namespace(None),
            Self::Pid => Part::Pid((thread.pid > 0).then_some(thread.pid)),
            Self::Command => Part::Command(some(&thread.command)),
            Self::Thread => Part::Thread(some(&thread.name).or_else(|| some(&thread.command))),
            Self::Tid => Part::Tids((thread.tid > 0).then_some(thread.tid).into_iter().collect()),
            Self::Attribute => {
                let pairs = thread.attributes.iter();
                Part::Attributes(pairs.map(|(key, value)| format!("{key}={value}")).collect())
            }
        }
    }

    /// Whether a scope is of the part of this dimension that was asked for. Units, containers and
    /// pods have several names.
    fn is_of(self, part: &Part, scope: &Scope) -> bool {
        match part {
            Part::Unit(Some(name)) => scope.is_of_unit(name),
            Part::Container(Some(name)) => scope.is_of_container(name),
            Part::Pod(Some(name)) => scope.is_of_pod(name),
            part => self.of(scope) == *part,
        }
    }

    /// Whether call stacks are kept by this dimension.
    const fn is_of_threads(self) -> bool {
        matches!(self, Self::Pid | Self::Command | Self::Thread | Self::Tid | Self::Attribute)
    }

    /// The dimension's name, as a title of a column.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Unit => "unit",
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Namespace => "namespace",
            Self::Pid => "pid",
            Self::Command => "command",
            Self::Thread => "thread",
            Self::Tid => "tid",
            Self::Attribute => "attribute",
        }
    }

    /// The words before a value: `labelled "x"`.
    const fn words(self) -> &'static str {
        match self {
            Self::Label => "labelled",
            Self::Unit => "of unit",
            Self::Container => "of container",
            Self::Pod => "of pod",
            Self::Namespace => "of namespace",
            Self::Pid => "of process",
            Self::Command => "of command",
            Self::Thread => "of threads named",
            Self::Tid => "of threads",
            Self::Attribute => "with attributes",
        }
    }

    /// The command that keeps samples apart by this dimension.
    const fn how(self) -> &'static str {
        match self {
            Self::Label => "dcpilabel LABEL COMMAND labels samples",
            Self::Unit | Self::Container => "dcpid --by-unit keeps units and containers apart",
            Self::Pod | Self::Namespace => {
                "dcpid --by-unit keeps containers apart, with the pods that CRI-O and containerd \
                 under Kubernetes tell"
            }
            Self::Pid => {
                "dcpid --per-process IMAGE keeps an image's processes apart, and call stacks have \
                 process numbers: dcpi prof --inclusive, tree, callers, flame"
            }
            Self::Command | Self::Thread | Self::Tid | Self::Attribute => {
                "only call stacks are kept by command and thread: dcpi prof --inclusive, tree, \
                 callers, flame"
            }
        }
    }
}

impl Part {
    /// The dimension of the value.
    pub const fn dimension(&self) -> Dimension {
        match self {
            Self::Label(_) => Dimension::Label,
            Self::Unit(_) => Dimension::Unit,
            Self::Container(_) => Dimension::Container,
            Self::Pod(_) => Dimension::Pod,
            Self::Namespace(_) => Dimension::Namespace,
            Self::Pid(_) => Dimension::Pid,
            Self::Command(_) => Dimension::Command,
            Self::Thread(_) => Dimension::Thread,
            Self::Tids(_) => Dimension::Tid,
            Self::Attributes(_) => Dimension::Attribute,
        }
    }

    /// The value as text, if there is one.
    pub fn value(&self) -> Option<String> {
        match self {
            Self::Label(text)
            | Self::Unit(text)
            | Self::Container(text)
            | Self::Pod(text)
            | Self::Namespace(text)
            | Self::Command(text)
            | Self::Thread(text) => text.clone(),
            Self::Pid(pid) => pid.map(|pid| pid.to_string()),
            Self::Attributes(pairs) => (!pairs.is_empty()).then(|| pairs.join(", ")),
            Self::Tids(tids) if tids.is_empty() => None,
            Self::Tids(tids) => {
                Some(tids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The value, or in brackets that there is none.
    pub fn shown(&self) -> String {
        let none = match self {
            Self::Label(_) => "[no label]",
            Self::Unit(_) => "[no unit]",
            Self::Container(_) => "[no container]",
            Self::Pod(_) => "[no pod]",
            Self::Namespace(_) => "[no namespace]",
            Self::Pid(_) => "[not by process]",
            Self::Command(_) => "[no command]",
            Self::Thread(_) => "[no thread name]",
            Self::Tids(_) => "[no thread number]",
            Self::Attributes(_) => "[no attribute]",
        };
        self.value().unwrap_or_else(|| none.to_owned())
    }
}

/// Whether a program had set an attribute, `KEY=VALUE`, for its thread.
fn has_attribute(thread: &Thread, pair: &str) -> bool {
    pair.split_once('=').is_some_and(|(key, value)| thread.attributes.get(key) == Some(value))
}

impl ScopeChoice {
    /// Whether samples of all scopes are chosen.
    pub fn is_all(&self) -> bool {
        !self.is_by_thread() && self.parts().is_empty()
    }

    /// Whether the choice is one among the threads of call stacks.
    pub const fn is_by_thread(&self) -> bool {
        self.pid.is_some() || self.needs_stacks()
    }

    /// Whether the choice can be answered from call stacks only.
    pub const fn needs_stacks(&self) -> bool {
        self.command.is_some()
            || self.thread.is_some()
            || !self.tids.is_empty()
            || !self.attributes.is_empty()
    }

    /// The choice without process, command and thread.
    pub fn without_threads(&self) -> Self {
        Self {
            pid: None,
            command: None,
            thread: None,
            tids: Vec::new(),
            attributes: Vec::new(),
            ..self.clone()
        }
    }

    /// Whether call stacks of this thread are chosen, which are in this scope.
    pub fn admits_thread(&self, scope: &Scope, thread: &Thread) -> bool {
        self.parts().into_iter().all(|part| match part {
            Part::Tids(tids) => tids.contains(&thread.tid),
            Part::Attributes(pairs) => pairs.iter().all(|pair| has_attribute(thread, pair)),
            part => {
                let dimension = part.dimension();
                dimension.is_of(&part, scope) || dimension.of_thread(thread) == part
            }
        })
    }

    /// The parts of the choice, without missing ones.
    pub fn parts(&self) -> Vec<Part> {
        let parts = [
            Part::Label(self.label.clone()),
            Part::Unit(self.unit.clone()),
            Part::Container(self.container.clone()),
            Part::Pod(self.pod.clone()),
            Part::Namespace(self.namespace.clone()),
            Part::Pid(self.pid),
            Part::Command(self.command.clone()),
            Part::Thread(self.thread.clone()),
            Part::Tids(self.tids.clone()),
            Part::Attributes(self.attributes.clone()),
        ];
        parts.into_iter().filter(|part| part.value().is_some()).collect()
    }

    /// The dimensions of the choice, each with its value.
    pub fn asked(&self) -> Vec<(Dimension, String)> {
        self.parts()
            .into_iter()
            .filter_map(|part| Some((part.dimension(), part.value()?)))
            .collect()
    }

    /// Whether samples of this scope are chosen.
    pub fn admits(&self, scope: &Scope) -> bool {
        self.parts().into_iter().all(|part| part.dimension().is_of(&part, scope))
    }

    /// For people: `labelled "x", of process 7`.
    pub fn shown(&self) -> String {
        self.shown_of(|_| true)
    }

    /// The same, of some dimensions.
    fn shown_of(&self, is_wanted: impl Fn(Dimension) -> bool) -> String {
        let shown = |(dimension, value): (Dimension, String)| match dimension {
            Dimension::Pid | Dimension::Tid => format!("{} {value}", dimension.words()),
            _ => format!("{} {value:?}", dimension.words()),
        };
        let asked = self.asked().into_iter().filter(|(dimension, _)| is_wanted(*dimension));
        asked.map(shown).collect::<Vec<_>>().join(", ")
    }

    /// Refuses a choice that has no samples in any of these scopes.
    ///
    /// # Errors
    /// [`AnalysisError::NoScope`], which names what there is.
    pub fn check<'a>(
        &self,
        known: impl Iterator<Item = &'a Scope> + Clone,
    ) -> Result<(), AnalysisError> {
        if self.is_all() || known.clone().any(|scope| self.admits(scope)) {
            return Ok(());
        }
        let values = |dimension: Dimension| -> BTreeSet<Part> {
            known
                .clone()
                .map(|scope| dimension.of(scope))
                .filter(|part| part.value().is_some())
                .collect()
        };
        let scopes = known.clone();
        let unknown = self.parts().into_iter().find_map(|asked| {
            let dimension = asked.dimension();
            let is_known = scopes.clone().any(|scope| dimension.is_of(&asked, scope));
            (!is_known).then(|| (dimension, values(dimension)))
        });
        // Each value has samples, but no sample has all of them.
        let Some((dimension, known)) = unknown else {
            return Err(AnalysisError::NoScope {
                asked: self.shown(),
                known: Vec::new(),
                how: "see the samples of each: dcpi prof --by label, unit or pid",
                elsewhere: None,
            });
        };
        let known = known.into_iter().filter_map(|part| part.value()).collect();
        let (asked, how) = (self.shown_of(|of| of == dimension), dimension.how());
        Err(AnalysisError::NoScope { asked, known, how, elsewhere: None })
    }

    /// The error of a choice of which there are no call stacks among those of these threads. It
    /// names the values that there are of the first part of the choice that no thread has.
    pub fn no_threads(&self, threads: &BTreeSet<&Thread>) -> AnalysisError {
        let mut of_threads =
            self.asked().into_iter().filter(|(dimension, _)| dimension.is_of_threads());
        let values = |dimension: Dimension| -> BTreeSet<Part> {
            let parts = threads.iter().flat_map(|thread| match dimension.of_thread(thread) {
                Part::Attributes(pairs) => {
                    pairs.into_iter().map(|pair| Part::Attributes(vec![pair])).collect()
                }
                part => vec![part],
            });
            parts.filter(|part| part.value().is_some()).collect()
        };
        let unknown = of_threads.find_map(|(dimension, asked)| {
            let known = values(dimension);
            let is_known = known.iter().any(|part| part.value().as_ref() == Some(&asked));
            (!is_known).then_some(known)
        });
        AnalysisError::NoScope {
            asked: self.shown(),
            known: unknown.unwrap_or_default().iter().filter_map(Part::value).collect(),
            how: "dcpi prof --by thread shows which threads have call stacks",
            elsewhere: None,
        }
    }

    /// The error of the chosen epochs of a database. Where they have no samples of the choice and
    /// another epoch has some, the error names the newest one. Opens all other epochs.
    pub fn hinted(
        &self,
        error: AnalysisError,
        db: &Database,
        chosen: &[(String, EpochId)],
    ) -> AnalysisError {
        let AnalysisError::NoScope { asked, known, how, .. } = error else { return error };
        let elsewhere = self.newest_epoch(db, chosen).map(|(host, epoch)| {
            let is_chosen = chosen.iter().any(|(chosen, _)| *chosen == host);
            let of_host = if is_chosen { String::new() } else { format!("--host {host} ") };
            format!("the newest epoch that has some is another: {of_host}--epoch {epoch}")
        });
        AnalysisError::NoScope { asked, known, how, elsewhere }
    }

    /// The newest epoch with samples of the choice, apart from these. What cannot be read has none.
    fn newest_epoch(
        &self,
        db: &Database,
        without: &[(String, EpochId)],
    ) -> Option<(String, EpochId)> {
        let of_host = |host: String| {
            let epochs = db.epochs(&host).unwrap_or_default();
            epochs.into_iter().map(move |epoch| (host.clone(), epoch))
        };
        let all = db.hosts().unwrap_or_default().into_iter().flat_map(of_host);
        let mut others: Vec<_> = all.filter(|epoch| !without.contains(epoch)).collect();
        others.sort_by(|(_, a), (_, b)| b.cmp(a));
        others.into_iter().find(|(host, id)| {
            let scopes = db.epoch(host, id).and_then(|epoch| epoch.scopes()).unwrap_or_default();
            scopes.iter().any(|scope| self.admits(scope))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(label: &str, unit: &str, pid: u32) -> Scope {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Scope { label: some(label), unit: some(unit), pid: (pid > 0).then_some(pid) }
    }

    fn choice(of: &Scope) -> ScopeChoice {
        ScopeChoice {
            label: of.label.clone(),
            unit: of.unit.clone(),
            pid: of.pid,
            ..ScopeChoice::default()
        }
    }

    #[test]
    fn what_is_asked_for_is_admitted() {
        let known = scope("a", "u.service", 7);
        for (asked, admits) in [
            (scope("", "", 0), true),
            (scope("a", "", 0), true),
            (scope("b", "", 0), false),
            (scope("", "u.service", 7), true),
            (scope("a", "u.service", 8), false),
        ] {
            assert_eq!(choice(&asked).admits(&known), admits, "{asked:?}");
        }
        assert!(!choice(&scope("a", "", 0)).admits(&Scope::default()));
    }

    #[test]
    fn what_there_is_none_of_is_refused_with_what_there_is() {
        let known = [scope("b", "u", 0), scope("a", "", 7), scope("b", "", 10), Scope::default()];
        for (asked, said) in [
            (scope("x", "", 0), "no samples labelled \"x\"; there are: a, b"),
            (scope("", "x", 0), "no samples of unit \"x\"; there are: u"),
            (scope("a", "", 9), "no samples of process 9; there are: 7, 10"),
            (
                scope("a", "u", 0),
                "no samples labelled \"a\", of unit \"u\"; see the samples of each: dcpi prof --by",
            ),
        ] {
            let error = choice(&asked).check(known.iter()).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
        let error =
            choice(&scope("x", "", 0)).check([Scope::default()].iter()).unwrap_err().to_string();
        let said = "no samples labelled \"x\"; these epochs keep none apart (--epoch chooses others): dcpilabel LABEL COMMAND labels samples";
        assert_eq!(error, said);
        assert!(choice(&scope("b", "u", 0)).check(known.iter()).is_ok());
        assert!(choice(&Scope::default()).check([].iter()).is_ok());
    }
}
