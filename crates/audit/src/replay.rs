//! Replay: the same queries and the same randomness on neighbouring data.
//!
//! Noise and lots are equal, so the difference of two answers is the effect of one record.

use protocol::{Announcement, GradientQuery, LossQuery, Noisy, Oracle, Refused, TensorMap};

/// Two oracles with the same secret and neighbouring data, queried in parallel and compared.
///
/// The analyst gets the answers of the first.
pub struct PairedOracles<'a> {
    one: &'a mut dyn Oracle,
    other: &'a mut dyn Oracle,
    /// Sensitivity of a sum in units of the clip bound: 1 for add/remove, 2 for replace-one.
    sensitivity: f64,
    report: ReplayReport,
}

/// Distances and violations found by a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayReport {
    /// The number of answers compared.
    pub releases: u64,
    /// The largest distance of two answers, relative to the declared sensitivity.
    pub max_distance: f64,
    /// The largest joint distance of all blocks of one lot, relative to its announcement.
    ///
    /// The joint distance is Σ_k (distance_k/(σ_k·C_k))².
    pub max_joint_distance: f64,
    /// Violations, one line each.
    pub violations: Vec<String>,
    /// Σ 1/σ² announced for the current lot.
    announced: f64,
    /// Σ (distance/(σ·C))² of the current lot.
    used: f64,
}

/// Largest number of violations that are recorded.
const MAX_VIOLATIONS: usize = 20;

impl<'a> PairedOracles<'a> {
    /// Pairs two oracles that have not answered any query.
    pub fn new(one: &'a mut dyn Oracle, other: &'a mut dyn Oracle, sensitivity: f64) -> Self {
        Self { one, other, sensitivity, report: ReplayReport::default() }
    }

    /// Returns the distances and violations found so far.
    pub fn report(&self) -> &ReplayReport {
        &self.report
    }

    /// Records a violation, up to [`MAX_VIOLATIONS`].
    fn violation(&mut self, what: String) {
        if self.report.violations.len() < MAX_VIOLATIONS {
            self.report.violations.push(what);
        }
    }

    /// Returns both answers; records a violation if only one is refused or the refusals differ.
    fn both_answers<T>(
        &mut self,
        what: &str,
        one: Result<T, Refused>,
        other: Result<T, Refused>,
    ) -> Result<Option<(T, T)>, Refused> {
        match (one, other) {
            (Ok(one), Ok(other)) => Ok(Some((one, other))),
            (Err(one), Err(other)) => {
                if one != other {
                    self.violation(format!("{what}: the refusals differ: {one:?} and {other:?}"));
                }
                Err(one)
            }
            (Ok(_), Err(refused)) => {
                self.violation(format!("{what}: only the second oracle refused: {refused}"));
                Err(refused)
            }
            (Err(refused), Ok(_)) => {
                self.violation(format!("{what}: only the first oracle refused: {refused}"));
                Err(refused)
            }
        }
    }

    /// Records the distance of two answers, and a violation if it exceeds the sensitivity.
    ///
    /// `size` bounds the norms of both answers, and `unit` is the clip bound divided by the lot
    /// size.
    fn compare(&mut self, what: &str, distance: f64, size: f64, unit: f64, sigma: f64) {
        // Released values are rounded to f32, which can add to the distance.
        let distance = (distance - 1.2e-7 * size).max(0.0);
        let share = distance / (self.sensitivity * unit);
        self.report.releases += 1;
        self.report.max_distance = self.report.max_distance.max(share);
        self.report.used += (distance / unit / sigma).powi(2);
        // Tests for the valid case, so that NaN is a violation.
        if !(share <= 1.0) {
            self.violation(format!(
                "{what}: one record changed it by {share:.4} of the declared sensitivity"
            ));
        }
        let joint = self.report.used / (self.sensitivity.powi(2) * self.report.announced);
        self.report.max_joint_distance = self.report.max_joint_distance.max(joint);
        if !(joint <= 1.0 + 1e-9) {
            self.violation(format!(
                "{what}: the releases of one lot cost {joint:.4} of its announcement"
            ));
        }
    }

    /// Records a violation if the declared noise of the answers differs.
    fn check_std(&mut self, what: &str, one: &[f64], other: &[f64]) {
        if one != other {
            self.violation(format!("{what}: the declared noise depends on the record"));
        }
    }
}

impl Oracle for PairedOracles<'_> {
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused> {
        (self.report.announced, self.report.used) = (
            announced
                .sigmas()
                .iter()
                .map(|&(sigma, count)| count as f64 / sigma.get().powi(2))
                .sum(),
            0.0,
        );
        let (one, other) = (self.one.draw(announced), self.other.draw(announced));
        self.both_answers("a lot", one, other).map(|_| ())
    }

    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<TensorMap>, Refused> {
        let (one, other) = (self.one.gradient(query), self.other.gradient(query));
        let Some((one, other)) = self.both_answers("a gradient", one, other)? else {
            return Err(Refused::Failed("no answer".into()));
        };
        self.check_std("a gradient", &one.std, &other.std);
        let shapes = |tensors: &TensorMap| -> Vec<(usize, Vec<usize>)> {
            tensors.iter().map(|(k, tensor)| (k, tensor.shape().to_vec())).collect()
        };
        if shapes(&one.value) != shapes(&other.value) {
            self.violation("a gradient: the tensors that are answered depend on the record".into());
        }
        for (block, bound) in query.bounds.iter().enumerate() {
            let of_block = |tensors: &TensorMap| -> Vec<f64> {
                let tensors = tensors.iter().filter(|(k, _)| query.blocks.of(*k) == block);
                tensors.flat_map(|(_, x)| x.data().iter().map(|&x| f64::from(x))).collect()
            };
            let (a, b) = (of_block(&one.value), of_block(&other.value));
            let distance = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let size =
                a.iter().zip(&b).map(|(a, b)| a.abs().max(b.abs()).powi(2)).sum::<f64>().sqrt();
            // The declared noise is σ·C/B: one record may change a release by C/B.
            let unit = one.std[block] / bound.sigma.get();
            self.compare(
                &format!("block {block} of a gradient"),
                distance,
                size,
                unit,
                bound.sigma.get(),
            );
        }
        Ok(one)
    }

    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        let (one, other) = (self.one.loss(query), self.other.loss(query));
        let Some((one, other)) = self.both_answers("a loss", one, other)? else {
            return Err(Refused::Failed("no answer".into()));
        };
        self.check_std("a loss", &one.std, &other.std);
        let unit = one.std.first().copied().unwrap_or(0.0) / query.bound.sigma.get();
        self.compare(
            "a loss",
            (one.value - other.value).abs(),
            one.value.abs().max(other.value.abs()),
            unit,
            query.bound.sigma.get(),
        );
        Ok(one)
    }
}
