//! `dcpi serve`: who gets a report, and that nobody keeps others from it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::database::{Db, typical};
use crate::runs::{dcpi, json, reports, shown};

struct Server {
    child: Child,
    address: String,
    key: String,
}

impl Server {
    fn start(db: &Db) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_dcpi"))
            .args(["serve", "--listen", "127.0.0.1:0", "--db"])
            .arg(db.root())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let link = line.trim().strip_prefix("open http://").unwrap_or_else(|| panic!("{line}"));
        let (address, key) = link.split_once("/#key=").unwrap();
        Self { child, address: address.to_owned(), key: key.to_owned() }
    }

    /// Status and body of the answer to a request for `host` with these further headers.
    fn ask(&self, line: &str, host: &str, headers: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("{line} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The same, with the key.
    fn report(&self, path: &str) -> (u16, Value) {
        let key = format!("Authorization: Bearer {}\r\n", self.key);
        let (status, body) = self.ask(&format!("GET {path}"), &self.address, &key);
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn recorded() -> Db {
    let db = Db::new();
    db.epoch("node-7", typical());
    db
}

#[test]
fn a_report_is_what_the_command_prints_and_needs_the_key() {
    let db = recorded();
    let server = Server::start(&db);
    let printed = dcpi().args(["prof", "--format=json", "--db"]).arg(db.root()).output().unwrap();
    let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(server.report("/report/prof"), (200, printed));
    let (status, error) = server.report("/report/prof?a=--epoch%3D-9");
    assert!(status == 200 && error["error"].is_string(), "{error}");
    assert_eq!(server.report("/report/record").0, 400, "it would run a command");
    assert_eq!(server.report("/report/prof?a=--db%3D/etc").0, 400);
    let own = server.address.as_str();
    assert_eq!(server.ask("GET /report/prof", own, "").0, 403, "without the key");
    assert_eq!(server.ask("GET /", "evil.example", "").0, 421);
    assert_eq!(server.ask("POST /", own, "").0, 405);
    let (status, page) = server.ask("GET /", own, "");
    assert!(status == 200 && page.contains("<html") && !page.contains(&server.key));
}

/// A served page is saved as the file that `dcpi html` writes, whatever the note is.
#[test]
fn a_file_is_what_html_writes() {
    let db = recorded();
    let server = Server::start(&db);
    let key = format!("Authorization: Bearer {}\r\n", server.key);
    let ask = |words: &str| server.ask(&format!("GET /file?{words}"), &server.address, &key);
    let (status, file) = ask("a=--epoch%3Dlatest&a=--note%3D%3C%2Fscript%3E&a=%5Bext4%5D");
    assert_eq!(status, 200);
    let shown = shown(&db, "html [ext4] -o - --epoch=latest --note=</script>");
    assert_eq!(reports(&file), reports(&shown));
    assert_eq!(file.matches("</script>").count(), shown.matches("</script>").count());
    assert!(file.contains("\"note\":\"\\u003c/script\\u003e\""), "{file}");
    assert_eq!(ask("a=-o/etc/x").0, 400);
    assert_eq!(server.ask("GET /file", &server.address, "").0, 403, "without the key");
}

/// Answers are kept, and given again only while the database is as it was.
#[test]
fn a_report_is_of_the_database_as_it_is() {
    let db = recorded();
    let server = Server::start(&db);
    let hosts = || server.report("/report/prof").1["hosts"].clone();
    for _ in 0..2 {
        assert_eq!(hosts(), serde_json::json!(["node-7"]));
    }
    db.epoch("node-8", typical());
    for _ in 0..2 {
        assert_eq!(hosts(), serde_json::json!(["node-7", "node-8"]));
    }
}

/// Words that are no options are names of images and procedures, never commands to run.
#[test]
fn explanations_are_of_an_image() {
    let db = recorded();
    let server = Server::start(&db);
    let of = |path: &str| server.report(path).1;
    assert_eq!(of("/report/why?a=-n40&a=%5Bext4%5D"), json(&db, "why -n40 [ext4]"));
    let ran = of("/report/why?a=true&a=true&a=true");
    assert!(ran["error"].as_str().unwrap().contains("unexpected argument"), "{ran}");
}

/// A hundred connections without a request are more than the server has places for.
#[test]
fn silent_connections_keep_nobody_out() {
    let db = recorded();
    let server = Server::start(&db);
    let silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    for _ in 0..3 {
        assert_eq!(server.ask("GET /", &server.address, "").0, 200);
    }
    drop(silent);
}
