//! `muffle account`: what a run costs.

use super::Failure;
use super::number::{count, real};
use super::output::{fields, json_number, print, print_json, short, table, up, warn};
use super::repeat::Repeated;
use super::run::RunArgs;
use accounting::{
    Accountant, Composition, Cost, Delta, Epsilon, Event, Guarantee, Sampling, SamplingRate, Sigma,
    Unit,
};
use clap::Args;
use serde_json::{Value, json};

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
    #[arg(long, short = 's', value_name = "S", value_parser = real, allow_hyphen_values = true)]
    noise_multiplier: f64,
    /// δ of the guarantee; prints ε
    #[arg(long, short = 'd', value_name = "D", value_parser = real, allow_hyphen_values = true, required_unless_present = "epsilon", conflicts_with = "epsilon")]
    delta: Option<f64>,
    /// ε of the guarantee; prints δ
    #[arg(long, short = 'e', value_name = "E", value_parser = real, allow_hyphen_values = true)]
    epsilon: Option<f64>,
    /// Show what an attacker can gain: true-positive rates at fixed false-positive rates, and the
    /// equivalent GDP μ
    #[arg(long)]
    trade_off: bool,
    /// Also show the price of so many runs on the same people, as in tuning
    #[arg(long, value_name = "K", value_parser = count, requires = "delta")]
    runs: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
}

impl Account {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let sigma = Sigma::new(self.noise_multiplier)?;
        let steps = self.run.steps()?;
        let events = self.run.events(sigma, steps)?;
        let cost = Cost::new(&events, self.run.unit())?;
        let accountant = self.run.accountant.into();
        let guarantee = match (self.delta, self.epsilon) {
            (Some(delta), _) => cost.epsilon(accountant, Delta::new(delta)?)?,
            (None, Some(epsilon)) => cost.delta(accountant, Epsilon::new(epsilon)?)?,
            (None, None) => return Err(Failure::Input("give --delta or --epsilon".into())),
        };
        self.run.warnings(Delta::new(guarantee.delta).ok());
        let per_block =
            if self.run.blocks > 1 { self.per_block(sigma, steps, &guarantee)? } else { None };
        if per_block.is_some() {
            warn(
                "the per-block count treats blocks of one lot as if each had drawn a lot of its \
                 own: it is not a valid guarantee",
            );
        }
        let trade_off =
            if self.trade_off { Some(self.trade_off(&cost, &guarantee)?) } else { None };
        let repeated = match (self.runs, Delta::new(guarantee.delta)) {
            (Some(runs), Ok(delta)) => Some(Repeated::new(&events, self.run.unit(), delta, runs)?),
            _ => None,
        };
        if self.run.json {
            let mut object = self.json(sigma, steps, &guarantee, per_block, trade_off);
            if let Some(repeated) = repeated {
                object["repeated"] = repeated.json();
            }
            print_json(&object);
        } else {
            self.print_table(sigma, steps, &guarantee, per_block, trade_off);
            if let Some(repeated) = repeated {
                print(
                    "\nTrying several times on the same people (all looked at, or a random number \
                     of runs and only the best released):",
                );
                print(&table(&Repeated::HEADER, &[repeated.cells()]));
            }
        }
        Ok(())
    }

    /// What the run would seem to cost if every block had drawn a lot of its own, by RDP as in the
    /// DP-Muon paper's Table 3.
    fn per_block(
        &self,
        sigma: Sigma,
        steps: u64,
        guarantee: &Guarantee,
    ) -> Result<Option<f64>, Failure> {
        let rate = self.run.rate()?;
        let Ok(cost) = independent(rate, sigma, steps, self.run.blocks)
            .and_then(|all| Cost::new(&all, self.run.unit()))
        else {
            return Ok(None);
        };
        Ok(Some(match Delta::new(guarantee.delta) {
            Ok(delta) if self.delta.is_some() => cost.epsilon(Accountant::Rdp, delta)?.epsilon,
            _ => cost.delta(Accountant::Rdp, Epsilon::new(guarantee.epsilon)?)?.delta,
        }))
    }

    fn trade_off(
        &self,
        cost: &Cost,
        guarantee: &Guarantee,
    ) -> Result<(f64, Vec<(f64, f64)>), Failure> {
        let least = guarantee.delta.clamp(1e-9, 1e-3);
        let curve = cost.trade_off(Delta::new(least)?)?;
        let rates = [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.5];
        Ok((curve.gdp_mu(least), rates.iter().map(|fpr| (*fpr, curve.tpr(*fpr))).collect()))
    }

    fn json(
        &self,
        sigma: Sigma,
        steps: u64,
        g: &Guarantee,
        per_block: Option<f64>,
        trade_off: Option<(f64, Vec<(f64, f64)>)>,
    ) -> Value {
        let mut object = json!({
            "epsilon": json_number(g.epsilon),
            "delta": json_number(g.delta),
            "accountant": g.accountant.name(),
            "estimate": g.estimate,
            "sampling": self.run.sampling.name(),
            "adjacency": g.unit.adjacency.to_string(),
            "rows_per_person": g.unit.rows,
            "noise_multiplier": sigma.get(),
            "noise_multiplier_effective": json_number(self.run.effective(sigma)),
            "blocks": self.run.blocks,
            "sampling_rate": self.run.rate().ok().map(SamplingRate::get),
            "steps": steps,
        });
        if let Some(order) = g.order {
            object["order"] = json_number(order);
        }
        if let Some(invalid) = per_block {
            let name = if self.delta.is_some() { "epsilon" } else { "delta" };
            object["invalid_per_block"] = json!({
                name: json_number(invalid),
                "accountant": "rdp",
                "valid": false,
                "why": "blocks of one lot counted as if each had drawn a lot of its own",
            });
        }
        if let Some((mu, points)) = trade_off {
            let points: Vec<Value> =
                points.iter().map(|(fpr, tpr)| json!({"fpr": fpr, "tpr": tpr})).collect();
            object["gdp_mu"] = json_number(mu);
            object["trade_off"] = Value::Array(points);
        }
        object
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
                "\nAn attacker who may accuse this share of the innocent finds at most this share \
                 of the members (equivalent GDP μ = {}):",
                up(mu, 3)
            ));
            let rows: Vec<Vec<String>> =
                points.iter().map(|(fpr, tpr)| vec![short(*fpr), up(*tpr, 4)]).collect();
            print(&table(&["false positives", "true positives ≤"], &rows));
        }
    }
}

/// Every block of every step as a Poisson-sampled release of its own. Not what happened.
fn independent(
    rate: SamplingRate,
    sigma: Sigma,
    steps: u64,
    blocks: u64,
) -> accounting::Result<Composition> {
    let lots = if rate.get() == 1.0 { Sampling::Full } else { Sampling::Poisson { rate } };
    Composition::repeated(Event::gaussian(lots, sigma), steps).times(blocks)
}
