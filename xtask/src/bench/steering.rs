//! `bench steering`: response time of a broker that answers players at a given rate, measured from
//! the time when each question was due.
//!
//! Questions are due at even intervals, whether answers arrive or not, so that a broker that stalls
//! is charged for the whole stall. The broker runs elsewhere (`experiments/broker-service`). Read
//! [`Row`] first.

use anyhow::{Context as _, ensure};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Arguments of `bench steering`.
#[derive(clap::Args)]
pub struct Args {
    /// Address on which the broker answers players, as HOST:PORT.
    #[arg(long)]
    address: String,
    /// Path and query; `{}` stands for the viewer's number.
    #[arg(long, default_value = "/steering/hls?location=city 1&isp=isp 1&viewer={}")]
    path: String,
    /// Questions a second.
    #[arg(long, default_value_t = 10_000)]
    questions_per_s: u64,
    /// Number of connections; each connection asks one question at a time.
    #[arg(long, default_value_t = 32)]
    connections: u64,
    /// Duration of the measurement.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Row {
    /// Questions that were due per second, and the number of answers that arrived.
    questions_per_s: u64,
    answered: usize,
    answers_per_s: f64,
    /// Time from the due time of a question to the end of its answer.
    us_p50: f64,
    us_p99: f64,
    us_p999: f64,
    us_max: f64,
}

/// Asks over one connection, and returns the response time of each answer in seconds.
fn ask(args: &Args, number: u64, began: Instant) -> anyhow::Result<Vec<f64>> {
    let stream = TcpStream::connect(&args.address).with_context(|| args.address.clone())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (mut writer, mut reader) = (stream.try_clone()?, BufReader::with_capacity(16 << 10, stream));
    let path = args.path.replace(' ', "%20");
    let (mut took, mut line, mut body) = (Vec::new(), String::new(), Vec::new());
    let ends = Duration::from_secs(args.seconds);
    for turn in 0.. {
        let question = turn * args.connections + number;
        let due = Duration::from_secs_f64(question as f64 / args.questions_per_s as f64);
        if due >= ends {
            break;
        }
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let path = path.replace("{}", &format!("{question:x}"));
        write!(writer, "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", args.address)?;
        let mut length = None;
        let mut is_ok = false;
        loop {
            line.clear();
            ensure!(reader.read_line(&mut line)? > 0, "the broker has closed the connection");
            is_ok |= line.starts_with("HTTP/1.1 200");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = Some(value.trim().parse()?);
            }
            if line == "\r\n" {
                break;
            }
        }
        body.resize(length.context("an answer without length")?, 0);
        reader.read_exact(&mut body)?;
        ensure!(is_ok, "{}", String::from_utf8_lossy(&body).trim());
        took.push((began.elapsed() - due).as_secs_f64());
    }
    Ok(took)
}

/// Runs the benchmark.
///
/// Errors: a broken connection, or an invalid answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.questions_per_s > 0 && args.connections > 0,
        "--questions-per-s and --connections: must be above 0"
    );
    let began = Instant::now() + Duration::from_millis(200);
    let took: anyhow::Result<Vec<Vec<f64>>> = std::thread::scope(|scope| {
        let start = |number| {
            scope.spawn(move || {
                std::thread::sleep(began.saturating_duration_since(Instant::now()));
                ask(args, number, began)
            })
        };
        let all: Vec<_> = (0..args.connections).map(start).collect();
        all.into_iter().map(|one| one.join().expect("asking does not panic")).collect()
    });
    let mut took: Vec<f64> = took?.into_iter().flatten().collect();
    took.sort_by(f64::total_cmp);
    let at = |share: f64| 1e6 * took[((took.len() - 1) as f64 * share).round() as usize];
    ensure!(!took.is_empty(), "no question was asked");
    let row = Row {
        questions_per_s: args.questions_per_s,
        answered: took.len(),
        answers_per_s: took.len() as f64 / began.elapsed().as_secs_f64(),
        us_p50: at(0.5),
        us_p99: at(0.99),
        us_p999: at(0.999),
        us_max: at(1.0),
    };
    if args.json {
        println!("{}", serde_json::to_string(&row)?);
    } else {
        println!(
            "{} answers, {:.0} a second; {:.0} us in the middle, {:.0} us of 99, {:.0} us of 99.9, {:.0} us at the most",
            row.answered, row.answers_per_s, row.us_p50, row.us_p99, row.us_p999, row.us_max
        );
    }
    Ok(())
}
