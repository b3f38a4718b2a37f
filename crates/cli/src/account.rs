//! `muffle account`: the privacy cost of a run.

use super::error::Error;
use super::number::{count, real};
use super::output::{Number, fields, print, print_json, short, table, up, warn};
use super::repeat::{self, Repeated};
use super::run::{PricedRun, RunArgs};
use accounting::{
    Accountant, Composition, Cost, Delta, Epsilon, Event, Guarantee, Sampling, SamplingRate, Sigma,
    Unit,
};
use clap::Args;
use serde::Serialize;

/// The price of a run: ε at a given δ, or δ at a given ε
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    muffle account --noise-multiplier 1.1 --sampling-rate 256/60000 --steps 14040 --delta 1e-5\n  \
    muffle account --noise-multiplier 2.3395 --blocks 49 --sampling-rate 1024/42043 --steps 410 \
    --delta 8e-6\n      \
    (49 blocks from each lot, as in the DP-Muon paper: the joint price, and the invalid count \
    beside it)")]
pub(crate) struct Account {
    /// Noise standard deviation divided by the clip bound, of each block
    #[arg(
        long,
        short = 's',
        alias = "sigma",
        value_name = "S",
        value_parser = real,
        allow_hyphen_values = true
    )]
    noise_multiplier: f64,
    /// δ of the guarantee; prints ε [default: 1/(10·N), if --dataset-size is given]
    #[arg(
        long,
        short = 'd',
        value_name = "D",
        value_parser = real,
        allow_hyphen_values = true,
        conflicts_with = "epsilon"
    )]
    delta: Option<f64>,
    /// ε of the guarantee; prints δ
    #[arg(long, short = 'e', value_name = "E", value_parser = real, allow_hyphen_values = true)]
    epsilon: Option<f64>,
    /// Show what an attacker can gain: true-positive rates at fixed false-positive rates, and the
    /// equivalent GDP μ
    #[arg(long)]
    trade_off: bool,
    /// Also show the price of K runs on the same records, as in tuning
    #[arg(long, value_name = "K", value_parser = count, conflicts_with = "epsilon")]
    runs: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    #[serde(flatten)]
    run: PricedRun,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invalid_per_block: Option<InvalidCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gdp_mu: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trade_off: Option<Vec<Rates>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeated: Option<repeat::Output>,
}

/// The per-block count of the privacy cost, which is not a guarantee.
#[derive(Serialize)]
struct InvalidCount {
    #[serde(skip_serializing_if = "Option::is_none")]
    epsilon: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Number>,
    accountant: &'static str,
    valid: bool,
    reason: &'static str,
}

/// One point of the trade-off curve.
#[derive(Serialize)]
struct Rates {
    fpr: f64,
    tpr: f64,
}

impl From<(f64, f64)> for Rates {
    fn from((fpr, tpr): (f64, f64)) -> Self {
        Self { fpr, tpr }
    }
}

impl Account {
    pub(crate) fn run(mut self) -> Result<(), Error> {
        if self.epsilon.is_none() {
            self.delta = Some(self.run.delta_or_default(self.delta)?);
        }
        let sigma = Sigma::new(self.noise_multiplier)?;
        let steps = self.run.steps()?;
        let events = self.run.events(sigma, steps)?;
        let cost = Cost::new(&events, self.run.unit())?;
        let accountant = self.run.accountant;
        let guarantee = match (self.delta, self.epsilon) {
            (Some(delta), _) => cost.epsilon(accountant, Delta::new(delta)?)?,
            (None, Some(epsilon)) => cost.delta(accountant, Epsilon::new(epsilon)?)?,
            (None, None) => return Err(Error::usage("give --delta or --epsilon")),
        };
        self.run.print_warnings(Delta::new(guarantee.delta).ok());
        let per_block =
            if self.run.blocks > 1 { self.per_block(sigma, steps, &guarantee)? } else { None };
        if per_block.is_some() {
            warn(
                "the per-block count treats each block as if it had its own lot: it is not a valid \
                 guarantee",
            );
        }
        let trade_off =
            if self.trade_off { Some(self.trade_off(&cost, &guarantee)?) } else { None };
        let repeated = match (self.runs, Delta::new(guarantee.delta)) {
            (Some(runs), Ok(delta)) => Some(Repeated::new(&events, self.run.unit(), delta, runs)?),
            _ => None,
        };
        if self.run.json {
            return print_json(&Output {
                run: self.run.priced(sigma, steps, &guarantee),
                order: guarantee.order.map(Number),
                invalid_per_block: per_block.map(|figure| self.invalid_count(figure)),
                gdp_mu: trade_off.as_ref().map(|(mu, _)| Number(*mu)),
                trade_off: trade_off
                    .map(|(_, points)| points.into_iter().map(Rates::from).collect()),
                repeated: repeated.map(|repeated| repeated.output()),
            });
        }
        self.print_table(sigma, steps, &guarantee, per_block, trade_off);
        if let Some(repeated) = repeated {
            print(&format!("\n{}", Repeated::TITLE));
            print(&table(&Repeated::HEADER, &[repeated.cells()]));
        }
        Ok(())
    }

    /// Computes the invalid count that treats each block as if it had its own lot.
    ///
    /// By RDP, as in Table 3 of the DP-Muon paper.
    fn per_block(
        &self,
        sigma: Sigma,
        steps: u64,
        guarantee: &Guarantee,
    ) -> Result<Option<f64>, Error> {
        let rate = self.run.rate()?;
        let Ok(cost) = per_block_events(rate, sigma, steps, self.run.blocks)
            .and_then(|events| Cost::new(&events, self.run.unit()))
        else {
            return Ok(None);
        };
        Ok(Some(match Delta::new(guarantee.delta) {
            Ok(delta) if self.delta.is_some() => cost.epsilon(Accountant::Rdp, delta)?.epsilon,
            _ => cost.delta(Accountant::Rdp, Epsilon::new(guarantee.epsilon)?)?.delta,
        }))
    }

    /// Returns the equivalent GDP μ, and false-positive with true-positive rates.
    fn trade_off(
        &self,
        cost: &Cost,
        guarantee: &Guarantee,
    ) -> Result<(f64, Vec<(f64, f64)>), Error> {
        let delta = guarantee.delta.clamp(1e-9, 1e-3);
        let curve = cost.trade_off(Delta::new(delta)?)?;
        let rates = [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.5];
        Ok((curve.gdp_mu(delta), rates.iter().map(|fpr| (*fpr, curve.tpr(*fpr))).collect()))
    }

    /// Labels the per-block count as invalid, for `--json`.
    fn invalid_count(&self, figure: f64) -> InvalidCount {
        let figure = Number(figure);
        InvalidCount {
            epsilon: self.delta.is_some().then_some(figure),
            delta: self.delta.is_none().then_some(figure),
            accountant: Accountant::Rdp.name(),
            valid: false,
            reason: "each block is counted as if it had its own lot",
        }
    }

    fn print_table(
        &self,
        sigma: Sigma,
        steps: u64,
        g: &Guarantee,
        per_block: Option<f64>,
        trade_off: Option<(f64, Vec<(f64, f64)>)>,
    ) {
        let kind = if g.estimate { " (estimate, not a guarantee)" } else { "" };
        print(&format!("ε = {} at δ = {}{kind}", up(g.epsilon, 4), short(g.delta)));
        print("");
        let order = g.order.map_or(String::new(), |order| format!(", order {}", short(order)));
        let mut rows = vec![
            ("neighbours", Unit::to_string(&g.unit)),
            ("accountant", format!("{}{order}", g.accountant)),
            (
                "sampling",
                self.run.rate().map_or(self.run.sampling.name().into(), |q| {
                    format!("{}, rate {}", self.run.sampling.name(), short(q.get()))
                }),
            ),
            ("steps", steps.to_string()),
            (
                "noise multiplier",
                if self.run.blocks > 1 {
                    format!("{} for each of {} blocks", sigma, self.run.blocks)
                } else {
                    sigma.to_string()
                },
            ),
            ("  per sensitivity, joint", short(self.run.effective(sigma))),
        ];
        if let Some(invalid) = per_block {
            let name = if self.delta.is_some() { "ε" } else { "δ" };
            rows.push((
                "INVALID per-block count",
                format!("{name} = {} (rdp; shown only to be compared)", short(invalid)),
            ));
        }
        print(&fields(&rows));
        if let Some((mu, points)) = trade_off {
            print(&format!(
                "\nTrue-positive rate of any membership test, at most (equivalent GDP μ = {}):",
                up(mu, 3)
            ));
            let rows: Vec<Vec<String>> =
                points.iter().map(|(fpr, tpr)| vec![short(*fpr), up(*tpr, 4)]).collect();
            print(&table(&["false positives", "true positives ≤"], &rows));
        }
    }
}

/// Every block of every step as a separate Poisson-sampled release. Invalid: blocks share a lot.
fn per_block_events(
    rate: SamplingRate,
    sigma: Sigma,
    steps: u64,
    blocks: u64,
) -> accounting::Result<Composition> {
    let lots = if rate.get() == 1.0 { Sampling::Full } else { Sampling::Poisson { rate } };
    Composition::repeated(Event::gaussian(lots, sigma), steps).times(blocks)
}
