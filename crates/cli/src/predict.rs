//! `muffle predict`: predicts the labels of texts or images.

use super::data_options::DataOptions;
use super::error::Error;
use super::output::{note, warn};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use muffle::LoadedModel;
use muffle::config::Config;
use muffle::data::{Missing, Task};
use muffle::evaluate::Prediction;
use muffle::load::data;
use muffle::predict::{Predictor, RowPrediction};
use serde::{Serialize, Serializer};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Predict the labels of texts or images with their probabilities, or a number for each
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    muffle predict runs/sst2 --data new.csv --out predictions.csv\n  \
    muffle predict runs/mnist --data t10k-images-idx3-ubyte.gz --out predictions.jsonl\n  \
    muffle predict runs/sst2 --data new.txt --json\n\n\
    The data need no labels; if they have some, they are not read. The columns are the number of \
    the row, the predicted label, and the probability of each class; of several labels those with a \
    probability above 0.5, separated by semicolons; for regression, the value. Texts with \
    more tokens than the model takes are cut. An empty row has no prediction: its cells are \
    empty.\n\
    Language models are refused: they generate texts (muffle generate).")]
pub(crate) struct Predict {
    /// The folder of a run, a directory in the Hugging Face layout, or a name on the hub
    #[arg(value_name = "DIR|MODEL")]
    model: String,
    /// The data
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// The file of the predictions, .csv or .jsonl [default: standard output]
    #[arg(long, short = 'o', value_name = "FILE", conflicts_with = "json")]
    out: Option<PathBuf>,
    /// The format of the predictions [default: by the name of --out; csv]
    #[arg(long, value_name = "NAME", conflicts_with = "json")]
    out_format: Option<OutFormat>,
    #[command(flatten)]
    reading: DataOptions,
    /// The names of the classes, if the model's files do not have them: --labels 0,1
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    labels: Vec<String>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The format of predictions.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutFormat {
    /// A table with a header.
    Csv,
    /// One JSON object per line.
    Jsonl,
}

impl OutFormat {
    /// The format that the name of a file says.
    fn of(path: &Path) -> Result<Self, Error> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Ok(Self::Csv),
            Some("jsonl") => Ok(Self::Jsonl),
            _ => Err(Error::usage(format!(
                "--out: expected a name that ends with .csv or .jsonl, or --out-format; got {}",
                path.display()
            ))),
        }
    }
}

impl Predict {
    pub(crate) fn run(self) -> Result<(), Error> {
        let form = match (self.json, self.out_format, &self.out) {
            (true, _, _) => Form::Object,
            (false, Some(format), _) => Form::Rows(format),
            (false, None, Some(path)) => Form::Rows(OutFormat::of(path)?),
            (false, None, None) => Form::Rows(OutFormat::Csv),
        };
        let model = LoadedModel::open_for_inference(&self.model, &mut |line| note!("{line}"))?;
        let mut predictor = Predictor::new(&model, self.labels)?;
        let mut config = Config::default().data;
        // Such a row has no prediction, as an empty one.
        config.missing = Missing::Skip;
        self.reading.apply(&mut config);
        config.image_size = model.image_size();
        let rows = data::rows_without_labels(&config, &self.data)?;
        let target = match self.out {
            Some(path) => Target::file(path, &self.data)?,
            None => Target::Stdout(BufWriter::new(io::stdout())),
        };
        let columns = Columns { task: model.task(), labels: predictor.labels().to_vec() };
        let mut writer = Writer { target, form, columns, is_first: true };
        let mut progress = Progress::new(&writer.target);
        let counts = predictor.rows(rows, &mut |row| {
            progress.add();
            writer.row(&row)
        });
        let counts = match counts.and_then(|counts| writer.finish().map(|()| counts)) {
            Ok(counts) => counts,
            Err(error) => {
                writer.target.discard();
                return Err(error.into());
            }
        };
        progress.finish();
        note!("{} rows", counts.rows);
        if counts.skipped > 0 {
            warn(&format!("rows without a prediction, because they are empty: {}", counts.skipped));
        }
        Ok(())
    }
}

/// How predictions are written.
#[derive(Clone, Copy)]
enum Form {
    /// Row by row.
    Rows(OutFormat),
    /// As one JSON object.
    Object,
}

/// Where predictions are written to.
enum Target {
    Stdout(BufWriter<io::Stdout>),
    /// A file that gets its name at the end, so that an incomplete one is not mistaken for it.
    File {
        path: PathBuf,
        partial: PathBuf,
        file: BufWriter<File>,
    },
}

impl Target {
    /// Creates the file, and removes it on Ctrl-C.
    fn file(path: PathBuf, data: &Path) -> Result<Self, Error> {
        let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
        if same(&path, data) {
            return Err(Error::usage(format!(
                "--out: expected another file than --data, got {}",
                path.display()
            )));
        }
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = BufWriter::new(File::create(&partial).map_err(muffle::Error::io(&partial))?);
        let removed = partial.clone();
        // Installing a handler fails only if there is one already.
        let _ = ctrlc::set_handler(move || {
            let _ = std::fs::remove_file(&removed);
            std::process::exit(130);
        });
        Ok(Self::File { path, partial, file })
    }

    /// Writes text. Exits quietly when the reader of standard output has closed the pipe.
    fn write(&mut self, text: &str) -> Result<(), muffle::Error> {
        match self {
            Self::Stdout(stdout) => {
                if stdout.write_all(text.as_bytes()).is_err() {
                    std::process::exit(0);
                }
                Ok(())
            }
            Self::File { partial, file, .. } => {
                file.write_all(text.as_bytes()).map_err(muffle::Error::io(partial))
            }
        }
    }

    /// Completes the output.
    fn finish(&mut self) -> Result<(), muffle::Error> {
        match self {
            Self::Stdout(stdout) => {
                if stdout.flush().is_err() {
                    std::process::exit(0);
                }
                Ok(())
            }
            Self::File { path, partial, file } => {
                file.flush().map_err(muffle::Error::io(partial))?;
                std::fs::rename(&*partial, &*path).map_err(muffle::Error::io(path))
            }
        }
    }

    /// Removes an incomplete file; what is on standard output stays there.
    fn discard(&mut self) {
        match self {
            Self::Stdout(stdout) => drop(stdout.flush()),
            Self::File { partial, .. } => drop(std::fs::remove_file(partial)),
        }
    }
}

/// Writes predictions.
struct Writer {
    target: Target,
    form: Form,
    columns: Columns,
    is_first: bool,
}

impl Writer {
    fn row(&mut self, row: &RowPrediction) -> Result<(), muffle::Error> {
        let text = match self.form {
            Form::Rows(OutFormat::Csv) => self.columns.csv_row(row),
            Form::Rows(OutFormat::Jsonl) => self.columns.json_row(row)? + "\n",
            Form::Object if self.is_first => self.columns.json_row(row)?,
            Form::Object => format!(",{}", self.columns.json_row(row)?),
        };
        let start = if std::mem::take(&mut self.is_first) { self.start() } else { String::new() };
        self.target.write(&(start + &text))
    }

    /// The text before the first row.
    fn start(&self) -> String {
        match self.form {
            Form::Rows(OutFormat::Csv) => self.columns.csv_header(),
            Form::Rows(OutFormat::Jsonl) => String::new(),
            Form::Object => "{\"rows\":[".into(),
        }
    }

    fn finish(&mut self) -> Result<(), muffle::Error> {
        if let Form::Object = self.form {
            self.target.write("]}\n")?;
        }
        self.target.finish()
    }
}

/// The columns of predictions.
struct Columns {
    task: Task,
    /// The names of the classes or labels.
    labels: Vec<String>,
}

impl Columns {
    /// The header of a table.
    fn csv_header(&self) -> String {
        let prediction = match self.task {
            Task::Classification | Task::MultiLabel => "label",
            Task::Regression { .. } => "value",
        };
        let names = ["row", prediction].into_iter().chain(self.labels.iter().map(String::as_str));
        csv_line(names.map(String::from))
    }

    /// A row of a table; without a prediction, all cells but the first are empty.
    fn csv_row(&self, row: &RowPrediction) -> String {
        let cells = match &row.prediction {
            None => vec![String::new(); 1 + self.labels.len()],
            Some(Prediction::Value(value)) => vec![number(value)],
            Some(prediction @ (Prediction::Class(values) | Prediction::Labels(values))) => {
                let label = self.predicted(prediction).join(";");
                std::iter::once(label).chain(values.iter().map(number)).collect()
            }
        };
        csv_line(std::iter::once(row.row.to_string()).chain(cells))
    }

    /// A prediction as a JSON object.
    fn json_row(&self, row: &RowPrediction) -> Result<String, muffle::Error> {
        let prediction = row.prediction.as_ref();
        let names = prediction.map(|prediction| self.predicted(prediction));
        let probabilities = match prediction {
            Some(Prediction::Class(values) | Prediction::Labels(values)) => {
                Some(Probabilities { labels: &self.labels, values })
            }
            _ => None,
        };
        let object = match self.task {
            Task::Classification => JsonRow::Class {
                row: row.row,
                label: names.and_then(|names| names.first().copied()),
                probabilities,
            },
            Task::MultiLabel => JsonRow::Labels { row: row.row, labels: names, probabilities },
            Task::Regression { .. } => JsonRow::Value {
                row: row.row,
                value: match prediction {
                    Some(Prediction::Value(value)) => Some(*value),
                    _ => None,
                },
            },
        };
        serde_json::to_string(&object).map_err(muffle::Error::Encoding)
    }

    /// The names of the predicted classes or labels.
    fn predicted(&self, prediction: &Prediction) -> Vec<&str> {
        prediction.classes().into_iter().map(|class| self.labels[class].as_str()).collect()
    }
}

/// A prediction in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum JsonRow<'a> {
    Class { row: u64, label: Option<&'a str>, probabilities: Option<Probabilities<'a>> },
    Labels { row: u64, labels: Option<Vec<&'a str>>, probabilities: Option<Probabilities<'a>> },
    Value { row: u64, value: Option<f64> },
}

/// Joins cells, with quotation marks where they are needed (RFC 4180).
fn csv_line(cells: impl Iterator<Item = String>) -> String {
    let quoted = |cell: String| match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    };
    cells.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

/// The shortest text that is read back as the same number.
fn number(x: &f64) -> String {
    if *x != 0.0 && !(1e-5..1e16).contains(&x.abs()) { format!("{x:e}") } else { x.to_string() }
}

/// Probabilities by class, in the order of the classes.
struct Probabilities<'a> {
    labels: &'a [String],
    values: &'a [f64],
}

impl Serialize for Probabilities<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.labels.iter().zip(self.values))
    }
}

/// Shows the number of rows on standard error.
struct Progress {
    bar: ProgressBar,
    /// Whether standard error is a terminal that shows no predictions.
    is_live: bool,
    rows: u64,
    last: Instant,
}

impl Progress {
    /// Between two lines, if standard error is not a terminal.
    const PAUSE: Duration = Duration::from_secs(10);

    fn new(target: &Target) -> Self {
        let shows_predictions = matches!(target, Target::Stdout(_)) && io::stdout().is_terminal();
        let is_live = io::stderr().is_terminal() && !shows_predictions;
        let bar = match is_live {
            true => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
            false => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("{pos} rows · {per_sec}") {
            bar.set_style(style);
        }
        Self { bar, is_live, rows: 0, last: Instant::now() }
    }

    fn add(&mut self) {
        self.rows += 1;
        self.bar.inc(1);
        if !self.is_live && self.last.elapsed() > Self::PAUSE {
            note!("{} rows …", self.rows);
            self.last = Instant::now();
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(task: Task) -> Columns {
        Columns { task, labels: vec!["good, mostly".into(), "bad".into()] }
    }

    fn row(row: u64, prediction: impl Into<Option<Prediction>>) -> RowPrediction {
        RowPrediction { row, prediction: prediction.into() }
    }

    #[test]
    fn cells_are_quoted_and_rows_without_a_prediction_are_empty() {
        let columns = columns(Task::Classification);
        assert_eq!(columns.csv_header(), "row,label,\"good, mostly\",bad\n");
        let sure = row(7, Prediction::Class(vec![1.0 - 1e-7, 1e-7]));
        assert_eq!(columns.csv_row(&sure), "7,\"good, mostly\",0.9999999,1e-7\n");
        assert_eq!(columns.csv_row(&row(8, None)), "8,,,\n");
    }

    #[test]
    fn objects_have_the_classes_in_order() {
        let columns = columns(Task::Classification);
        let text = columns.json_row(&row(1, Prediction::Class(vec![0.25, 0.75]))).unwrap();
        let expected = "{\"row\":1,\"label\":\"bad\",\"probabilities\":{\"good, mostly\":0.25,\
            \"bad\":0.75}}";
        assert_eq!(text, expected);
        let none = columns.json_row(&row(2, None)).unwrap();
        assert_eq!(none, "{\"row\":2,\"label\":null,\"probabilities\":null}");
    }

    #[test]
    fn several_labels_and_none() {
        let columns = columns(Task::MultiLabel);
        let both = row(1, Prediction::Labels(vec![0.75, 0.625]));
        assert_eq!(columns.csv_row(&both), "1,\"good, mostly;bad\",0.75,0.625\n");
        let none = columns.json_row(&row(2, Prediction::Labels(vec![0.5, 0.25]))).unwrap();
        assert!(none.starts_with("{\"row\":2,\"labels\":[],\"probabilities\":{"), "{none}");
    }

    #[test]
    fn numbers_are_values() {
        let columns =
            Columns { task: Task::Regression { mean: 0.0, scale: 1.0 }, labels: Vec::new() };
        assert_eq!(columns.csv_header(), "row,value\n");
        assert_eq!(columns.csv_row(&row(3, Prediction::Value(-2.5))), "3,-2.5\n");
        assert_eq!(columns.json_row(&row(4, None)).unwrap(), "{\"row\":4,\"value\":null}");
    }
}
