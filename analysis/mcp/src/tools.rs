//! The tools: their arguments, and the words of the command that each call becomes.

use serde_json::{Map, Value, json};

use crate::Reads;

/// A tool, made of a command.
pub(crate) struct ToolOf {
    pub(crate) name: &'static str,
    /// What it answers, for the agent that chooses.
    pub(crate) text: &'static str,
    /// The command and the options that are always there.
    command: &'static [&'static str],
    /// What the call may say; words without an option in their order on the command line.
    takes: &'static [&'static [Argument]],
    /// A command of `dcpi-fleet`.
    pub(crate) of_fleet: bool,
}

/// An argument of a tool.
struct Argument {
    name: &'static str,
    text: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// A word that the command needs.
    Needed,
    /// A set of samples of this database, which the command needs.
    Set,
    /// A word that the command may have.
    Word,
    /// The value of an option.
    Of(&'static str),
    /// One of a few values of an option.
    OneOf(&'static str, &'static [&'static str]),
    /// A whole number for an option, up to a limit.
    Number(&'static str, u64),
    /// An option without a value.
    Flag(&'static str),
}

const fn argument(name: &'static str, kind: Kind, text: &'static str) -> Argument {
    Argument { name, text, kind }
}

/// The samples that a report is of.
const SELECTION: &[Argument] = &[
    argument("since", Kind::Of("--since"), "from then on: 14:03, -10min, 2026-11-24T14:00:00Z"),
    argument("until", Kind::Of("--until"), "until then, as since"),
    argument(
        "epoch",
        Kind::Of("--epoch"),
        "latest (the default without since and until), all, an ID of epochs, or -1 for the one before",
    ),
    argument("event", Kind::Of("--event"), "an event of the profile; usertime: with waits"),
    argument("host", Kind::Of("--host"), "the host, where the database has several"),
    argument("label", Kind::Of("--label"), "only samples with this label"),
    argument("unit", Kind::Of("--unit"), "only this systemd unit or container"),
    argument("container", Kind::Of("--container"), "only containers of this name or image"),
    argument("pod", Kind::Of("--pod"), "only containers of this pod"),
    argument("namespace", Kind::Of("--namespace"), "only pods of this namespace"),
    argument("pid", Kind::Number("--pid", u32::MAX as u64), "only this process"),
];
const ROWS: &[Argument] = &[argument("rows", Kind::Number("-n", 500), "at most so many rows")];
const THREADS: &[Argument] = &[
    argument("command", Kind::Of("--command"), "only this command, as the kernel names it"),
    argument("thread", Kind::Of("--thread"), "only threads of this name"),
];
const IMAGE: Argument = argument("image", Kind::Word, "a program, library, script or the kernel");
const PROCEDURE: Argument = argument("procedure", Kind::Needed, "a procedure, by its name");

pub(crate) const TOOLS: &[ToolOf] = &[
    ToolOf {
        name: "epochs",
        text: "What was recorded: epochs with their times, hosts, samples and labels",
        command: &["epochs"],
        takes: &[],
        of_fleet: false,
    },
    ToolOf {
        name: "why",
        text: "What takes the time and why: findings with share, cause, how sure, evidence, gain, \
               advice; of everything, an image or a procedure",
        command: &["why"],
        takes: &[
            &[IMAGE, argument("procedure", Kind::Word, "a procedure of the image")],
            ROWS,
            SELECTION,
        ],
        of_fleet: false,
    },
    ToolOf {
        name: "prof",
        text: "Where the time went: procedures (or images, lines, labels, commands ...), shares",
        command: &["prof"],
        takes: &[
            &[
                IMAGE,
                argument(
                    "by",
                    Kind::OneOf(
                        "--by",
                        &[
                            "label",
                            "unit",
                            "container",
                            "pod",
                            "namespace",
                            "pid",
                            "command",
                            "thread",
                        ],
                    ),
                    "rows of these instead of procedures",
                ),
                argument("images", Kind::Flag("--images"), "a row for each image"),
                argument("lines", Kind::Flag("--lines"), "a row for each source line"),
                argument("inclusive", Kind::Flag("--inclusive"), "with what each procedure calls"),
            ],
            THREADS,
            ROWS,
            SELECTION,
        ],
        of_fleet: false,
    },
    ToolOf {
        name: "callers",
        text: "Who called a procedure, each with its part of the procedure's time",
        command: &["callers"],
        takes: &[&[IMAGE, PROCEDURE], THREADS, ROWS, SELECTION],
        of_fleet: false,
    },
    ToolOf {
        name: "callees",
        text: "What a procedure called, each with its part of the procedure's time",
        command: &["callees"],
        takes: &[&[IMAGE, PROCEDURE], THREADS, ROWS, SELECTION],
        of_fleet: false,
    },
    ToolOf {
        name: "list",
        text: "Source lines and instructions of a procedure with their samples",
        command: &["list"],
        takes: &[
            &[
                argument("image", Kind::Needed, "the image that has the procedure"),
                PROCEDURE,
                argument("why", Kind::Flag("--why"), "executions, cycles and causes too"),
            ],
            SELECTION,
        ],
        of_fleet: false,
    },
    ToolOf {
        name: "diff",
        text: "What changed from one set of samples to another, with what is chance. Sets are \
               label:NAME, an epoch's ID, or since:TIME,until:TIME",
        command: &["diff"],
        takes: &[
            &[
                argument("before", Kind::Set, "the first set"),
                argument("after", Kind::Set, "the second set"),
                argument("of_image", Kind::Of("--image"), "only this image"),
            ],
            ROWS,
            SELECTION,
        ],
        of_fleet: false,
    },
    ToolOf {
        name: "timeline",
        text: "Time of procedures, commands, images or labels over the hours: what happened when",
        command: &["timeline"],
        takes: &[
            &[
                IMAGE,
                argument(
                    "by",
                    Kind::OneOf("--by", &["procedure", "command", "thread", "image", "label"]),
                    "what rows are of",
                ),
                argument("slices", Kind::Number("--slices", 200), "columns of time"),
            ],
            THREADS,
            ROWS,
            SELECTION,
        ],
        of_fleet: false,
    },
    ToolOf {
        name: "explain",
        text: "What a word of a report means",
        command: &["explain"],
        takes: &[&[argument("term", Kind::Needed, "the word")]],
        of_fleet: false,
    },
    ToolOf {
        name: "fleet_review",
        text: "The week's review of a fleet: where cores went, what changed with which build",
        command: &["review"],
        takes: &[&[argument("week", Kind::Of("--week"), "as 2026-W47; else the last that ended")]],
        of_fleet: true,
    },
];

impl ToolOf {
    /// The JSON Schema of the tool's arguments.
    pub(crate) fn schema(&self) -> Map<String, Value> {
        let all = || self.takes.iter().flat_map(|some| some.iter());
        let property = |argument: &Argument| {
            let mut of = match argument.kind {
                Kind::Flag(_) => json!({"type": "boolean"}),
                Kind::Number(_, most) => json!({"type": "integer", "minimum": 1, "maximum": most}),
                Kind::OneOf(_, values) => json!({"type": "string", "enum": values}),
                Kind::Needed | Kind::Set | Kind::Word | Kind::Of(_) => {
                    json!({"type": "string", "maxLength": WORD_MAX})
                }
            };
            if let Some(object) = of.as_object_mut() {
                object.insert("description".to_owned(), argument.text.into());
            }
            (argument.name.to_owned(), of)
        };
        let needed = all().filter(|one| matches!(one.kind, Kind::Needed | Kind::Set));
        let schema = json!({
            "type": "object",
            "properties": all().map(property).collect::<Map<_, _>>(),
            "required": needed.map(|one| one.name).collect::<Vec<_>>(),
            "additionalProperties": false,
        });
        schema.as_object().cloned().unwrap_or_default()
    }

    /// The words of the command that a call becomes, the program first.
    ///
    /// # Errors
    /// One line for the agent: an argument that is not there, is missing or has no fit value.
    pub(crate) fn words(
        &self,
        given: &Map<String, Value>,
        reads: &Reads,
    ) -> Result<Vec<String>, String> {
        let all = || self.takes.iter().flat_map(|some| some.iter());
        if let Some(unknown) = given.keys().find(|name| all().all(|one| one.name != **name)) {
            let names: Vec<&str> = all().map(|one| one.name).collect();
            return Err(format!(
                "{} takes no {unknown:?}; it takes {}",
                self.name,
                names.join(", ")
            ));
        }
        let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let mut words = vec![text(&reads.dcpi)];
        words.extend(self.command.iter().map(|word| (*word).to_owned()));
        match &reads.fleet {
            Some(store) if self.of_fleet => {
                words.splice(..1, [text(&reads.dcpi.with_file_name("dcpi-fleet"))]);
                words.extend(["--store".to_owned(), store.clone()]);
            }
            _ if self.name != "explain" => words.push(format!("--db={}", text(&reads.db))),
            _ => {}
        }
        let mut plain = Vec::new();
        for argument in all() {
            let value = given.get(argument.name).filter(|value| !value.is_null());
            argument.add(value, &mut words, &mut plain)?;
        }
        // An option cannot follow; but `--` itself begins a command of `dcpi why`.
        if self.command != ["why"] && !plain.is_empty() {
            words.push("--".to_owned());
        } else if let Some(option) = plain.iter().find(|word| word.starts_with('-')) {
            return Err(format!("{option:?} is no name"));
        }
        words.append(&mut plain);
        Ok(words)
    }
}

impl Argument {
    /// Adds what the argument's value says.
    fn add(
        &self,
        value: Option<&Value>,
        words: &mut Vec<String>,
        plain: &mut Vec<String>,
    ) -> Result<(), String> {
        let Some(value) = value else {
            let missing = || format!("{} is missing: {}", self.name, self.text);
            return match self.kind {
                Kind::Needed | Kind::Set => Err(missing()),
                _ => Ok(()),
            };
        };
        let unfit = |what: &str| Err(format!("{} must be {what}", self.name));
        let word = || value.as_str().filter(|word| !word.is_empty() && word.len() <= WORD_MAX);
        match self.kind {
            Kind::Flag(option) => match value.as_bool() {
                Some(true) => words.push(option.to_owned()),
                Some(false) => {}
                None => return unfit("true or false"),
            },
            Kind::Number(option, most) => {
                let Some(number) = value.as_u64().filter(|number| (1..=most).contains(number))
                else {
                    return unfit(&format!("a whole number from 1 to {most}"));
                };
                words.extend([option.to_owned(), number.to_string()]);
            }
            Kind::OneOf(option, values) => match word() {
                Some(word) if values.contains(&word) => words.push(format!("{option}={word}")),
                _ => return unfit(&format!("one of {}", values.join(", "))),
            },
            Kind::Needed | Kind::Set | Kind::Word | Kind::Of(_) => {
                let Some(word) = word().filter(|word| !word.contains('\0')) else {
                    return unfit(&format!("text of 1 to {WORD_MAX} bytes"));
                };
                match self.kind {
                    Kind::Set if !is_of_the_database(word) => {
                        return unfit("label:NAME, an epoch's ID, or since:TIME,until:TIME");
                    }
                    Kind::Of(option) => words.push(format!("{option}={word}")),
                    _ => plain.push(word.to_owned()),
                }
            }
        }
        Ok(())
    }
}

/// Whether a SET of `dcpi diff` is of the database that is read: epochs, or keys of which none
/// names another database.
pub fn is_of_the_database(set: &str) -> bool {
    const KEYS: [&str; 12] = [
        "container",
        "epoch",
        "epoch-label",
        "host",
        "image",
        "label",
        "namespace",
        "pid",
        "pod",
        "since",
        "unit",
        "until",
    ];
    // The mark of epochs that begin with a dash.
    let epochs = set.strip_prefix('@').unwrap_or(set);
    let is_epoch = |end: &str| {
        matches!(end, "" | "latest" | "all") || end.chars().all(|c| c.is_ascii_digit() || c == '-')
    };
    let has_own_key = |pair: &str| pair.split_once(':').is_some_and(|(key, _)| KEYS.contains(&key));
    epochs.split("..").all(is_epoch) || set.split(',').all(has_own_key)
}

/// Longest value of an argument, in bytes: mangled names are this long.
const WORD_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(tool: &str, given: Value) -> Result<String, String> {
        let reads = Reads { dcpi: "dcpi".into(), db: "/db".into(), fleet: Some("/fleet".into()) };
        let tool = TOOLS.iter().find(|one| one.name == tool).unwrap();
        tool.words(given.as_object().unwrap(), &reads).map(|words| words.join(" "))
    }

    #[test]
    fn a_call_becomes_a_command() {
        for (tool, given, expected) in [
            ("epochs", json!({}), "dcpi epochs --db=/db"),
            (
                "prof",
                json!({"image": "app", "inclusive": true, "rows": 5, "since": "14:3", "pid": null}),
                "dcpi prof --db=/db --inclusive -n 5 --since=14:3 -- app",
            ),
            ("callers", json!({"procedure": "f"}), "dcpi callers --db=/db -- f"),
            ("why", json!({"image": "app"}), "dcpi why --db=/db app"),
            (
                "diff",
                json!({"before": "-1", "after": "label:a,since:1"}),
                "dcpi diff --db=/db -- -1 label:a,since:1",
            ),
            ("explain", json!({"term": "-x"}), "dcpi explain -- -x"),
            (
                "fleet_review",
                json!({"week": "2026-W1"}),
                "dcpi-fleet review --store /fleet --week=2026-W1",
            ),
        ] {
            assert_eq!(words(tool, given).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_is_no_argument_is_said() {
        for (tool, given, said) in [
            ("prof", json!({"imag": "x"}), "prof takes no \"imag\"; it takes image, by"),
            ("list", json!({"image": "x"}), "procedure is missing"),
            ("prof", json!({"rows": 0}), "rows must be a whole number from 1 to 500"),
            ("prof", json!({"by": "moon"}), "by must be one of label"),
            ("prof", json!({"lines": "yes"}), "lines must be true or false"),
            ("prof", json!({"image": 5}), "image must be text"),
            ("prof", json!({"since": "a\0b"}), "since must be text"),
            ("why", json!({"image": "--", "procedure": "sh"}), "\"--\" is no name"),
            ("diff", json!({"before": "db:/x", "after": "latest"}), "before must be label:NAME"),
            ("diff", json!({"before": "-1", "after": "/x@latest"}), "after must be label:NAME"),
            ("diff", json!({"before": "-1", "after": "other"}), "after must be label:NAME"),
            ("why", json!({"image": "--try"}), "\"--try\" is no name"),
        ] {
            let error = words(tool, given).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
