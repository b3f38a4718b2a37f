//! Which path gives which answer.

use crate::catalog::{Catalog, MAX_RUNS};
use crate::curves::{self, MAX_CURVES};
use crate::files::RunFile;
use crate::guard::Guard;
use crate::http::{Request, Response};
use crate::planner::Question;
use crate::state::{RunState, Summary};
use crate::verdicts::{Verdicts, lock};
use muffle::evaluate::GeneratedText;
use muffle::report::{Marking, Number};
use muffle::run::result::Metrics;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Mutex;

/// Everything that requests share.
pub(crate) struct Site {
    guard: Guard,
    catalog: Mutex<Catalog>,
    verdicts: Verdicts,
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

impl Site {
    /// A site about the runs below these canonical paths.
    pub(crate) fn new(guard: Guard, roots: Vec<PathBuf>) -> Self {
        Self { guard, catalog: Mutex::new(Catalog::new(roots)), verdicts: Verdicts::default() }
    }

    /// Answers a request.
    pub(crate) fn respond(&self, request: &Request) -> Response {
        let Some(path) = self.guard.admit(request) else { return Response::not_found() };
        let answer = |response: fn(&Self, &Request) -> Response| {
            // A panic is a fault of the program; the other requests do not suffer from it.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| response(self, request)))
                .unwrap_or_else(|_| Response::error(500, "internal fault of the program"))
        };
        let get: fn(&Self, &Request) -> Response = match path {
            "" => |_, _| Response::new(HTML, include_str!("../assets/index.html")),
            "style.css" => |_, _| Response::new(STYLE, style()),
            "app.js" => |_, _| Response::new(SCRIPT, include_str!("../assets/app.js")),
            "page.js" => |_, _| Response::new(SCRIPT, include_str!("../assets/page.js")),
            "runs.js" => |_, _| Response::new(SCRIPT, include_str!("../assets/runs.js")),
            "planner.js" => |_, _| Response::new(SCRIPT, include_str!("../assets/planner.js")),
            "report.js" => |_, _| Response::new(SCRIPT, include_str!("../assets/report.js")),
            "runs" => |site, _| site.runs(),
            "run" => Self::run,
            "curves" => Self::curves,
            "report" => Self::report,
            "verification" => |site, request| match site.find(request) {
                Ok((id, ..)) => Response::json(&site.verdicts.get(&id)),
                Err(response) => response,
            },
            "plan" => |_, request| planned(request, |question| question.noise()),
            "plan/first" => |_, request| planned(request, |question| question.first_noise()),
            "plan/epochs" => |_, request| planned(request, |question| question.epochs()),
            "plan/attacker" => |_, request| planned(request, |question| question.attacker()),
            "plan/repeated" => |_, request| planned(request, |question| question.repeated()),
            "plan/recommended" => |_, request| planned(request, |question| question.recommended()),
            "verify" => {
                return match request.method.as_str() {
                    "POST" => answer(Self::verify),
                    _ => Response::error(405, "expected POST"),
                };
            }
            _ => return Response::not_found(),
        };
        match request.method.as_str() {
            "GET" => answer(get),
            _ => Response::error(405, "expected GET"),
        }
    }

    /// The list of runs.
    fn runs(&self) -> Response {
        #[derive(Serialize)]
        struct Runs {
            runs: Vec<Summary>,
            /// Why there may be more runs.
            incomplete: Option<String>,
        }
        let mut catalog = lock(&self.catalog);
        let runs = catalog.runs().map(Summary::new).collect();
        let incomplete = catalog
            .incomplete
            .then(|| format!("Not all folders were searched: at most {MAX_RUNS} runs are shown."));
        Response::json(&Runs { runs, incomplete })
    }

    /// Configuration, figures and samples of a run.
    fn run(&self, request: &Request) -> Response {
        #[derive(Serialize)]
        struct Details {
            name: String,
            config: Option<String>,
            marking: Marking,
            private: bool,
            figures: Vec<(String, Number)>,
            samples: Vec<GeneratedText>,
            problems: Vec<String>,
        }
        let (_, folder, name) = match self.find(request) {
            Ok(found) => found,
            Err(response) => return response,
        };
        let run = RunState::read(&folder);
        let mut problems = run.problems.clone();
        let samples = RunFile::Samples.read(&folder).and_then(|text| match text {
            Some(text) => {
                serde_json::from_str(&text).map_err(|error| RunFile::Samples.problem(error))
            }
            None => Ok(Vec::new()),
        });
        Response::json(&Details {
            name,
            config: RunFile::Config.read(&folder).unwrap_or_default(),
            marking: run.marking(),
            private: run.is_private(),
            figures: run.result.as_ref().map_or_else(Vec::new, |r| figures(&r.metrics)),
            samples: samples.unwrap_or_else(|problem| {
                problems.push(problem);
                Vec::new()
            }),
            problems,
        })
    }

    /// The charts of the runs that the query names.
    fn curves(&self, request: &Request) -> Response {
        let named: Option<Vec<(PathBuf, String)>> = {
            let catalog = lock(&self.catalog);
            request.values("run").take(MAX_CURVES).map(|id| catalog.find(id)).collect()
        };
        let Some(named) = named else { return Response::not_found() };
        let runs: Vec<(String, RunState)> =
            named.into_iter().map(|(path, name)| (name, RunState::read(&path))).collect();
        Response::json(&curves::panels(&runs))
    }

    /// The report of a run, as its process wrote it.
    fn report(&self, request: &Request) -> Response {
        match self.find(request).map(|(_, folder, _)| RunFile::Report.read(&folder)) {
            Ok(Ok(Some(text))) => Response::report(text.into_bytes()),
            Ok(Ok(None)) => Response::error(404, "the run has no report"),
            Ok(Err(problem)) => Response::error(500, &problem),
            Err(response) => response,
        }
    }

    /// Starts the verification of a run.
    fn verify(&self, request: &Request) -> Response {
        match self.find(request) {
            Ok((id, folder, _)) => Response::json(&self.verdicts.start(&id, folder)),
            Err(response) => response,
        }
    }

    /// The id, folder and name of the run that the query names.
    fn find(&self, request: &Request) -> Result<(String, PathBuf, String), Response> {
        let id = request.value("run").ok_or_else(Response::not_found)?;
        let (folder, name) = lock(&self.catalog).find(id).ok_or_else(Response::not_found)?;
        Ok((id.into(), folder, name))
    }
}

/// The style sheet of the page, with that of charts.
fn style() -> String {
    format!("{}\n{}\n", include_str!("../assets/style.css"), muffle::chart::style_sheet())
}

/// Answers a question of the planner.
fn planned<T: Serialize>(
    request: &Request,
    answer: impl Fn(&Question) -> Result<T, String>,
) -> Response {
    match Question::parse(request).and_then(|question| answer(&question)) {
        Ok(document) => Response::json(&document),
        Err(error) => Response::error(400, &error),
    }
}

/// The figures of a finished run on its evaluation data.
fn figures(metrics: &Metrics) -> Vec<(String, Number)> {
    let percent = |share: Option<f64>| share.map(|share| 100.0 * share);
    [
        ("NLL of a target", metrics.nll),
        ("perplexity", metrics.perplexity),
        ("accuracy, %", percent(metrics.accuracy)),
        ("macro-F1", metrics.macro_f1),
        ("micro-F1", metrics.micro_f1),
        ("AUROC", metrics.auroc),
        ("RMSE", metrics.rmse),
        ("MAE", metrics.mae),
        ("R²", metrics.r2),
        ("BLEU", metrics.bleu),
        ("ROUGE-L", metrics.rouge_l),
        ("facts right, %", percent(metrics.slot_accuracy)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_string(), value?.into())))
    .collect()
}
