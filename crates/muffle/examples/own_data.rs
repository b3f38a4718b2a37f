//! A data set of your own: rows of a CSV file become examples, one place for each row.
//!
//! Three rules keep the guarantee true:
//!
//! 1. Every row has a place. A row that cannot be used is a vacant place: the number of places is
//!    public, so it must not depend on what the rows say.
//! 2. A row becomes an example by itself. Scaling uses public ranges, not means of the data.
//! 3. Examples go into [`Records`] and do not come out. [`Collector`] streams them: beyond a limit
//!    of memory they go to a file without a name.
//!
//! `cargo run --release -p muffle --example own_data`

#![allow(clippy::print_stdout)]

use cpu::Network;
use engine::Example;
use model::Mlp;
use model::activation::Activation;
use muffle::Session;
use muffle::curator::{Collector, Records};
use muffle::data::Task;
use muffle::evaluate;
use optim::Method;
use std::io::{BufRead, Write};

/// One row: a visit to a clinic.
struct Visit {
    age: f32,
    pressure: f32,
    pulse: f32,
    admitted: bool,
}

impl Visit {
    /// Parses `age,pressure,pulse,admitted`. Returns nothing for a row that cannot be used.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(',').map(str::trim);
        let mut number = || fields.next()?.parse::<f32>().ok().filter(|x| x.is_finite());
        let (age, pressure, pulse) = (number()?, number()?, number()?);
        let admitted = match fields.next()? {
            "yes" => true,
            "no" => false,
            _ => return None,
        };
        Some(Self { age, pressure, pulse, admitted })
    }

    /// Turns the row into an example. The ranges are public knowledge about people, not about these
    /// rows.
    fn example(&self) -> Example {
        let scaled = |x: f32, low: f32, high: f32| {
            ((x - low) / (high - low)).clamp(0.0, 1.0).mul_add(2.0, -1.0)
        };
        let features = vec![
            scaled(self.age, 0.0, 100.0),
            scaled(self.pressure, 60.0, 220.0),
            scaled(self.pulse, 40.0, 180.0),
        ];
        Example::features(features, u32::from(self.admitted))
    }
}

/// Reads a file row by row, with at most `bytes` of examples in memory.
fn records(file: impl BufRead, bytes: usize) -> Result<Records, Box<dyn std::error::Error>> {
    let mut collector = Collector::new(&std::env::temp_dir(), bytes);
    for line in file.lines().skip(1) {
        collector.push(Visit::parse(&line?).map(|visit| visit.example()))?;
    }
    Ok(collector.finish()?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(made_up_csv(6000, 0).as_bytes())?;
    let records = records(std::io::BufReader::new(file.reopen()?), 64 << 10)?;
    // Public: the number of rows, whether they could be used or not.
    assert_eq!(records.places(), 6000);

    let mlp = Mlp { input: 3, hidden: vec![16], classes: 2, activation: Activation::Tanh };
    let graph = mlp.graph();
    let values = graph.init(0)?;
    let (network, params) = Network::new(graph, values, |_| true)?;
    let mut evaluated = network.new_instance();
    let mut session = Session::builder(network, params, records)
        .epsilon(2.0)
        .optimizer(Method::DpAdam(Default::default()))
        .learning_rate(0.02)
        .steps(120)
        .lot_size(300)
        .build()?;
    while session.step()?.is_some() {}

    // Public rows. With few of them memory is enough: `Records::new` and
    // `Records::with_vacancies` take a vector.
    let public: Vec<Example> = made_up_csv(1000, 1)
        .lines()
        .skip(1)
        .filter_map(|line| Some(Visit::parse(line)?.example()))
        .collect();
    let scores =
        evaluate::examples(&mut evaluated, session.params(), Task::Classification, &public)?;
    let promise = session.guarantee()?;
    println!(
        "accuracy {:.1} % at ε = {:.3}, δ = {:.1e} ({})",
        100.0 * scores.accuracy.unwrap_or(0.0),
        promise.epsilon,
        promise.delta,
        promise.unit
    );
    Ok(())
}

/// Made-up visits; one row in fifty is damaged.
fn made_up_csv(rows: u32, part: u32) -> String {
    let mut text = String::from("age,pressure,pulse,admitted\n");
    for i in 0..rows {
        let draw = |k: u32| (i * 7919 + k * 104_729 + part * 15_485_863) % 1009;
        let [age, pressure, pulse] = [draw(1) % 90, 80 + draw(2) % 120, 50 + draw(3) % 100];
        let admitted = if pressure + pulse + age / 2 > 270 { "yes" } else { "no" };
        match i % 50 {
            49 => text.push_str(&format!("{age},unknown,{pulse},{admitted}\n")),
            _ => text.push_str(&format!("{age},{pressure},{pulse},{admitted}\n")),
        }
    }
    text
}
