//! Runs one command within limits of time and size.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

/// Longest time of a command: a month of a busy host takes some ten seconds.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Most bytes of an answer: what an agent reads with ease. Rows beyond are named as cut.
const ANSWER_MAX: usize = 24 << 10;
/// Most bytes that are read of a command's output to count the lines that are cut.
const OUTPUT_MAX: u64 = 16 << 20;
/// Width of reports, in characters.
const COLUMNS: &str = "160";

/// The text that a command prints, after the line of the command itself.
///
/// # Errors
/// The command's own error message, or that the command ran longer than `TIME_MAX`.
pub(crate) async fn run(words: &[String]) -> Result<String, String> {
    let (program, rest) = words.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("COLUMNS", COLUMNS)
        .env("NO_COLOR", "1")
        .env("PAGER", "cat")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let finished = async {
        let (out, err) = tokio::join!(read(out), read(err));
        (child.wait().await, out, err)
    };
    let Ok((status, out, err)) = tokio::time::timeout(TIME_MAX, finished).await else {
        let limit = TIME_MAX.as_secs();
        return Err(format!(
            "it took more than {limit} s; choose less: since and until, or an image"
        ));
    };
    let said = String::from_utf8_lossy(&err).trim().to_owned();
    // Code 1 is a report with problems, which it shows.
    match status.map(|status| status.code()) {
        Ok(Some(0 | 1)) => {}
        Ok(_) if !said.is_empty() => return Err(said),
        Ok(code) => return Err(format!("the report ended with {code:?} and said nothing")),
        Err(error) => return Err(error.to_string()),
    }
    let mut text = format!("$ {}\n", shown(words));
    text.push_str(&bounded(&String::from_utf8_lossy(&out)));
    if !said.is_empty() {
        text.push_str(&format!("\n{}", bounded(&said)));
    }
    Ok(text)
}

async fn read(from: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        // What can be read is told; the end of the command says whether it is whole.
        let _ = from.take(OUTPUT_MAX).read_to_end(&mut bytes).await;
    }
    bytes
}

/// The command for a shell, without the folder of the program.
fn shown(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:+,@%".contains(c);
    let quoted = |word: &String| match word.chars().all(plain) && !word.is_empty() {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    let name = words.first().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let rest = words.iter().skip(1).map(quoted);
    std::iter::once(name.to_owned()).chain(rest).collect::<Vec<_>>().join(" ")
}

/// The first lines of a text, as many as fit in an answer, and how many are cut.
fn bounded(text: &str) -> String {
    if text.len() <= ANSWER_MAX {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut lines = text.lines();
    let mut left = 0_usize;
    for line in lines.by_ref() {
        if kept.len() + line.len() + 1 > ANSWER_MAX {
            left = 1;
            break;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    let left = left + lines.count();
    kept + &format!("[cut: {left} more lines; ask for fewer rows, an image or a shorter time]\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_now(words: &[&str]) -> Result<String, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(&words))
    }

    #[test]
    fn an_answer_has_its_command_and_what_it_said() {
        let said = run_now(&["/bin/sh", "-c", "echo 'a b'; echo note >&2; exit 1"]).unwrap();
        assert_eq!(said, "$ sh -c 'echo '\\''a b'\\''; echo note >&2; exit 1'\na b\n\nnote");
        assert_eq!(run_now(&["/bin/sh", "-c", "echo no >&2; exit 2"]), Err("no".to_owned()));
        assert!(run_now(&["/bin/sh", "-c", "kill -9 $$"]).is_err());
        assert!(run_now(&["/no/such"]).unwrap_err().starts_with("/no/such: "));
    }

    #[test]
    fn long_answers_say_what_is_cut() {
        let said = run_now(&["/bin/sh", "-c", "seq 100000"]).unwrap();
        assert!(said.len() < ANSWER_MAX + 200, "{}", said.len());
        let last = said.lines().last().unwrap();
        let kept = said.lines().count() - 2;
        assert!(last.starts_with(&format!("[cut: {} more lines", 100_000 - kept)), "{last}");
    }
}
