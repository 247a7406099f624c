//! `dcpi mcp`: an agent's client asks through tools.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A client of the protocol (modelcontextprotocol.io, 2025-06-18): JSON-RPC, a message to a line.
struct Client {
    server: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    asked: u64,
}

impl Client {
    fn start(db: &Path) -> Self {
        let mut server = Command::new(env!("CARGO_BIN_EXE_dcpi"))
            .args(["mcp", "--db"])
            .arg(db)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = server.stdin.take();
        let from = BufReader::new(server.stdout.take().unwrap());
        let mut client = Self { server, to, from, asked: 0 };
        let hello = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        assert_eq!(client.ask("initialize", &hello)["result"]["serverInfo"]["name"], "dcpi");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.to.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.asked += 1;
        let id = self.asked;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// The text of a tool's answer, and whether it is an error.
    fn call(&mut self, tool: &str, arguments: &Value) -> (String, bool) {
        let answer = self.ask("tools/call", &json!({"name": tool, "arguments": arguments}));
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        (text.to_owned(), result["isError"] == true)
    }
}

/// From 11:05 to 11:15 another program took the service's CPU: what was slow, and who it was, in
/// three calls.
#[test]
fn an_agent_finds_what_happened_at_a_time() {
    let db = crate::time::recorded();
    let mut client = Client::start(&db.root());
    let tools = client.ask("tools/list", &json!({}));
    let tools = tools["result"]["tools"].as_array().unwrap().clone();
    assert!(
        tools.len() == 9 && tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true)
    );
    let (epochs, _) = client.call("epochs", &json!({}));
    assert!(epochs.starts_with("$ dcpi epochs --db=") && epochs.contains("node-7"), "{epochs}");
    let (timeline, _) = client.call("timeline", &json!({"by": "command", "slices": 9}));
    let peak = timeline.lines().find(|line| line.contains("python3") && line.contains("11:05"));
    assert!(peak.is_some(), "{timeline}");
    let then =
        json!({"since": "2026-11-05T11:05:00Z", "until": "2026-11-05T11:15:00Z", "by": "command"});
    let (prof, is_error) = client.call("prof", &then);
    let first = prof.lines().find(|line| line.contains(" 90.10 ")).unwrap_or_default();
    assert!(!is_error && first.ends_with("python3"), "{prof}");
}

#[test]
fn what_cannot_be_answered_is_said_and_the_server_goes_on() {
    let db = crate::time::recorded();
    let mut client = Client::start(&db.root());
    for (tool, arguments, said) in [
        ("prof", json!({"rows": "many"}), "rows must be a whole number"),
        ("prof", json!({"colour": "red"}), "prof takes no \"colour\""),
        ("callers", json!({"procedure": "no_such"}), "no_such"),
        ("list", json!({"image": "--help", "procedure": "x"}), "--help"),
        ("prof", json!({"since": "never"}), "never"),
    ] {
        let (text, is_error) = client.call(tool, &arguments);
        assert!(is_error && text.contains(said), "{tool}: {text}");
    }
    let unknown = client.ask("tools/call", &json!({"name": "rm", "arguments": {}}));
    assert!(unknown["error"]["message"].as_str().unwrap().contains("rm"), "{unknown}");
    assert!(!client.call("explain", &json!({"term": "CPI"})).1, "it goes on");
    drop(client.to.take());
    assert!(client.server.wait().unwrap().success(), "it ends with its standard input");
}
